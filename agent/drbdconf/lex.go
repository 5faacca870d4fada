package drbdconf

import "strings"

type kind uint8

const (
	tokEOF kind = iota
	tokWord
	tokString
	tokPunct // one of { } ; [ ] :
	tokOther // a byte that begins nothing
)

type token struct {
	kind   kind
	text   string
	pos    Pos
	broken bool // complained about: what follows is not to be believed
}

func (t token) is(p string) bool { return t.kind == tokPunct && t.text == p }

func (t token) word() bool { return t.kind == tokWord || t.kind == tokString }

// String is the token in a message.
func (t token) String() string {
	switch t.kind {
	case tokEOF:
		return "the end of the file"
	case tokString:
		return "\"" + t.text + "\""
	}
	return "'" + t.text + "'"
}

const stringMax = 255 // bytes, as in all versions

type lexer struct {
	data      string
	off       int
	line, bol int // line number, and offset of its first byte
	file      string
	fail      func(pos Pos, reason, hint string)
}

func (l *lexer) pos() Pos { return Pos{l.file, l.line, l.off - l.bol + 1} }

func isWordByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("/._-", c) >= 0
}

func (l *lexer) space() {
	for l.off < len(l.data) {
		switch c := l.data[l.off]; c {
		case '\n':
			l.off++
			l.line, l.bol = l.line+1, l.off
		case ' ', '\t', '\r':
			l.off++
		case '#':
			if i := strings.IndexByte(l.data[l.off:], '\n'); i >= 0 {
				l.off += i
			} else {
				l.off = len(l.data)
			}
		default:
			return
		}
	}
}

func (l *lexer) next() token {
	l.space()
	t := token{pos: l.pos()}
	if l.off == len(l.data) {
		return t
	}
	start := l.off
	switch c := l.data[start]; {
	case c == '"':
		return l.quoted(t)
	case strings.IndexByte("{};[]:", c) >= 0:
		l.off++
		t.kind = tokPunct
	case isWordByte(c):
		for l.off < len(l.data) && isWordByte(l.data[l.off]) {
			l.off++
		}
		t.kind = tokWord
	default:
		l.off++
		for c >= 0x80 && l.off < len(l.data) && l.data[l.off]&0xc0 == 0x80 {
			l.off++ // the rest of a rune
		}
		t.kind = tokOther
	}
	t.text = l.data[start:l.off]
	return t
}

func (l *lexer) quoted(t token) token {
	t.kind = tokString
	var b strings.Builder
	for i := l.off + 1; ; i++ {
		switch {
		case i >= len(l.data) || l.data[i] == '\n':
			l.off = i
			l.fail(t.pos, "the string that begins here does not end on its line", "close it with \"")
			t.broken = true
		case l.data[i] == '"':
			l.off = i + 1
			if b.Len() > stringMax {
				l.fail(t.pos, "the string that begins here is longer than 255 bytes", "put it in a script, and call that")
				t.broken = true
			}
		case l.data[i] == 0:
			l.off = i + 1
			l.fail(t.pos, "the string that begins here has a zero byte", "")
			t.broken = true
		case l.data[i] == '\\' && i+1 < len(l.data) && l.data[i+1] != '\n':
			i++
			b.WriteByte(l.data[i])
			continue
		default:
			b.WriteByte(l.data[i])
			continue
		}
		t.text = b.String()
		return t
	}
}

// bracketed reads what stands up to ], after a [ that was a token.
func (l *lexer) bracketed() (string, bool) {
	end := strings.IndexAny(l.data[l.off:], "]\n;{}")
	if end < 0 || l.data[l.off+end] != ']' {
		return "", false
	}
	s := l.data[l.off : l.off+end]
	l.off += end + 1
	return strings.TrimSpace(s), true
}
