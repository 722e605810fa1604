// What pages do more with script: copy buttons, and "/" for the search box.
for (const box of document.querySelectorAll('.snippet')) {
  const pre = box.querySelector('pre');
  const button = document.createElement('button');
  button.type = 'button';
  button.textContent = 'Copy';
  button.setAttribute('aria-label', 'Copy: ' + pre.getAttribute('aria-label'));
  button.addEventListener('click', async () => {
    try {
      await navigator.clipboard.writeText(pre.textContent);
      button.textContent = 'Copied';
    } catch {
      getSelection().selectAllChildren(pre);
      button.textContent = 'Selected';
    }
    setTimeout(() => { button.textContent = 'Copy'; }, 2000);
  });
  box.append(button);
}
document.addEventListener('keydown', (e) => {
  if (e.key !== '/' || e.ctrlKey || e.metaKey || e.altKey) return;
  if (e.target instanceof Element && e.target.closest('input, textarea, select')) return;
  const q = document.getElementById('q2') ?? document.getElementById('q');
  if (!q) return;
  e.preventDefault();
  q.focus();
});
