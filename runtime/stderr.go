package runtime

import (
	"bytes"
	"io"
	"slices"
	"strings"
	"unicode"

	"github.com/krmcat/krmcat/runtime/resourcelist"
)

// holdBack is how much of a function's standard error is kept until the
// function has ended. What goes beyond that is passed on as it comes.
const holdBack = 64 << 10

// heldBuffer holds back what a function writes to standard error until its
// results are known, so that what they say is not said twice.
type heldBuffer struct {
	to   io.Writer // may be nil
	held bytes.Buffer
	open bool // too much was written to hold it back
	tail tailBuffer
}

func (h *heldBuffer) Write(p []byte) (int, error) {
	_, _ = h.tail.Write(p)
	switch {
	case h.to == nil:
		return len(p), nil
	case h.open:
		return h.to.Write(p)
	}
	h.held.Write(p)
	if h.held.Len() > holdBack {
		h.open = true
		_, err := h.to.Write(h.held.Bytes())
		h.held.Reset()
		return len(p), err
	}
	return len(p), nil
}

// release passes on what was held back, but for the lines that only say what
// the results or the error say.
func (h *heldBuffer) release(results []resourcelist.Result, err error) {
	if h.to == nil || h.open || h.held.Len() == 0 {
		return
	}
	text := withoutResults(h.held.String(), results)
	if err != nil {
		text = withoutLast(text, err.Error())
	}
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	_, _ = io.WriteString(h.to, text)
}

// withoutLast leaves out the last line if a message ends with it.
func withoutLast(text, message string) string {
	text = strings.TrimRightFunc(text, unicode.IsSpace)
	start := strings.LastIndexByte(text, '\n') + 1
	last := strings.TrimSpace(text[start:])
	if last == "" || !strings.HasSuffix(message, ": "+last) {
		return text
	}
	return text[:start]
}

// tailBuffer keeps the last lines of a stream.
type tailBuffer struct{ b []byte }

const keepTail = 16 << 10

func (t *tailBuffer) Write(p []byte) (int, error) {
	t.b = append(t.b, p...)
	if len(t.b) > 2*keepTail {
		t.b = append(t.b[:0], t.b[len(t.b)-keepTail:]...)
	}
	return len(p), nil
}

func (t *tailBuffer) String() string {
	if len(t.b) > keepTail {
		return string(t.b[len(t.b)-keepTail:])
	}
	return string(t.b)
}

// withoutResults leaves out the lines that only repeat results: functions
// print their findings for people as well, each SDK in its own words. Such a
// line has the message of a result, and besides it nothing but what else the
// result says, and names of severities.
func withoutResults(text string, results []resourcelist.Result) string {
	if len(results) == 0 || text == "" {
		return text
	}
	said := make([]saying, min(len(results), maxSayings))
	for i := range said {
		said[i] = sayingOf(results[i])
	}
	var b strings.Builder
	dropped := false
	for line := range strings.Lines(text) {
		if slices.ContainsFunc(said, func(s saying) bool { return s.repeatedBy(line) }) {
			dropped = true
			continue
		}
		b.WriteString(line)
	}
	if dropped && len(words(b.String())) == 0 {
		return "" // what was between them
	}
	return b.String()
}

// maxSayings bounds the results that lines are compared with.
const maxSayings = 1000

// saying is what a result says.
type saying struct {
	message []string // its lines
	known   map[string]bool
}

func sayingOf(r resourcelist.Result) saying {
	s := saying{known: map[string]bool{}}
	for _, w := range append(words(r.Text()), "error", "errors", "warning", "warn", "info", "fatal", "result", "results") {
		s.known[w] = true
	}
	for line := range strings.Lines(r.Message) {
		if len(words(line)) > 0 {
			s.message = append(s.message, strings.TrimSpace(line))
		}
	}
	return s
}

func (s saying) repeatedBy(line string) bool {
	for _, m := range s.message {
		before, after, ok := strings.Cut(line, m)
		if !ok {
			continue
		}
		if !slices.ContainsFunc(append(words(before), words(after)...), func(w string) bool { return !s.known[w] }) {
			return true
		}
	}
	return false
}

// words are the words of a text in lower case, without punctuation.
func words(text string) []string {
	return strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
}
