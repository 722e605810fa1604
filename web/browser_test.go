package web_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// browser is a Chromium of the test's own.
func browser(t *testing.T) context.Context {
	t.Helper()
	path := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if p, err := exec.LookPath(name); err == nil {
			path = p
			break
		}
	}
	if path == "" {
		const what = "no Chromium (Debian: apt-get install chromium)"
		if os.Getenv("KRMCAT_TEST_REQUIRE") == "all" {
			t.Fatal(what)
		}
		t.Skip(what)
	}
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]),
		chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.UserDataDir(t.TempDir()),
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-background-networking", true),
		chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-sync", true), chromedp.Flag("disable-gpu", true))
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	ctx, cancel = context.WithTimeout(ctx, 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// inspect finds what is wrong with the page that is shown: text that is hard
// to read (WCAG 2.2, 1.4.3), things that are hard to hit (2.5.8), and pages
// that have to be scrolled to the side (1.4.10).
const inspect = `(() => {
  const found = [];
  if (![...document.styleSheets].some((s) => s.cssRules.length > 10)) found.push('no style');
  if (document.querySelector('.snippet') && !document.querySelector('.snippet button')) found.push('no script');
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const parse = (c) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = c; canvas.fillRect(0, 0, 1, 1); return [...canvas.getImageData(0, 0, 1, 1).data]; };
  const over = (top, below) => { const a = top[3] / 255; return [0, 1, 2].map((i) => top[i] * a + below[i] * (1 - a)).concat(255); };
  const luminance = (c) => { const [r, g, b] = c.slice(0, 3).map((v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const background = (e) => {
    const layers = [];
    for (; e; e = e.parentElement) layers.push(parse(getComputedStyle(e).backgroundColor));
    let c = matchMedia('(prefers-color-scheme: dark)').matches ? [18, 18, 18, 255] : [255, 255, 255, 255];
    for (const l of layers.reverse()) c = over(l, c);
    return c;
  };
  const shown = (e) => e.checkVisibility({opacityProperty: true, visibilityProperty: true}) && !e.closest('.hide, .skip');
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const seen = new Set();
  while (walk.nextNode()) {
    const e = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || seen.has(e) || !shown(e) || e.closest('script')) continue;
    seen.add(e);
    const s = getComputedStyle(e), bg = background(e);
    const fg = over(parse(s.color), bg);
    const [a, b] = [luminance(fg), luminance(bg)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    const large = parseFloat(s.fontSize) >= 24 || parseFloat(s.fontSize) >= 18.66 && s.fontWeight >= 700;
    if (ratio < (large ? 3 : 4.5)) found.push('contrast ' + ratio.toFixed(2) + ': ' + e.textContent.trim().slice(0, 40));
  }
  for (const e of document.querySelectorAll('a, button, input, summary')) {
    if (!shown(e)) continue;
    const r = e.getBoundingClientRect();
    const inline = getComputedStyle(e).display === 'inline' && e.parentElement.textContent.trim() !== e.textContent.trim();
    if (!inline && !e.closest('.readme') && e.tagName !== 'A' && (r.width < 24 || r.height < 24)) found.push('small: ' + e.outerHTML.slice(0, 80));
  }
  const root = document.documentElement;
  if (root.scrollWidth > root.clientWidth) {
    const wide = [...document.querySelectorAll('body *')].filter((e) => e.getBoundingClientRect().right > root.clientWidth + 1 && !e.closest('.scroll, pre, .readme table')).slice(0, 3);
    found.push('wider than the window: ' + wide.map((e) => e.outerHTML.slice(0, 60)).join(' | '));
  }
  let level = 0;
  for (const h of document.querySelectorAll('h1, h2, h3, h4, h5, h6')) {
    const n = Number(h.tagName[1]);
    if (n > level + 1 && !h.closest('.readme')) found.push('heading ' + h.tagName + ' after level ' + level + ': ' + h.textContent.slice(0, 40));
    level = n;
  }
  return found;
})()`

// TestInBrowser looks at every page as people do: light and dark, on a
// telephone and on a desk.
func TestInBrowser(t *testing.T) {
	ctx := browser(t)
	s := filled(t)
	var complaints []string
	scheme := func(name string) chromedp.Action[chromedp.Void] {
		return func(ctx context.Context, tab *chromedp.Target) (chromedp.Void, error) {
			_, err := cdp.Call(ctx, tab, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
				Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}},
			})
			return chromedp.Void{}, err
		}
	}
	for _, color := range []string{"light", "dark"} {
		for _, width := range []int64{320, 1280} {
			for _, path := range append([]string{"/nope"}, allPages...) {
				if err := chromedp.Do(ctx, chromedp.EmulateViewport(width, 900), scheme(color), chromedp.Navigate(s.url+path)); err != nil {
					t.Fatalf("%s: %v", path, err)
				}
				found, err := chromedp.Run(ctx, chromedp.Evaluate[[]string](inspect))
				if err != nil {
					t.Fatalf("%s: %v", path, err)
				}
				for _, f := range found {
					complaints = append(complaints, fmt.Sprintf("%s, %s, %d wide: %s", path, color, width, f))
				}
			}
		}
	}
	slices.Sort(complaints)
	if len(complaints) > 0 {
		t.Errorf("%d complaints:\n%s", len(complaints), strings.Join(complaints[:min(len(complaints), 60)], "\n"))
	}
}

// Searching works with script and without.
func TestSearchInBrowser(t *testing.T) {
	ctx := browser(t)
	s := filled(t)
	search := func() string {
		t.Helper()
		if err := chromedp.Do(ctx, chromedp.Navigate(s.url+"/"), chromedp.SendKeys(chromedp.CSS("#q2"), "names\r"), chromedp.WaitVisible(chromedp.CSS(".split .card"))); err != nil {
			t.Fatal(err)
		}
		location, err := chromedp.Run(ctx, chromedp.Location())
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimPrefix(location, s.url)
	}
	if got := search(); got != "/search?q=names" {
		t.Errorf("search leads to %s", got)
	}
	// Script adds buttons to copy with.
	buttons, err := chromedp.Run(ctx, chromedp.Evaluate[int](`document.querySelectorAll('.snippet button').length`))
	if err != nil || buttons != 0 {
		t.Errorf("%d copy buttons in a list, %v", buttons, err)
	}
	if err := chromedp.Do(ctx, chromedp.Navigate(s.url+"/functions/example.com/SetLabels"), chromedp.WaitVisible(chromedp.CSS(".snippet button"))); err != nil {
		t.Fatal(err)
	}
	noScript := func(ctx context.Context, tab *chromedp.Target) (chromedp.Void, error) {
		_, err := cdp.Call(ctx, tab, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
		return chromedp.Void{}, err
	}
	if err := chromedp.Do(ctx, noScript); err != nil {
		t.Fatal(err)
	}
	if got := search(); got != "/search?q=names" {
		t.Errorf("without script, search leads to %s", got)
	}
}
