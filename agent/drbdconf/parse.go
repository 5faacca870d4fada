package drbdconf

import (
	"path"
	"slices"
	"strings"
)

// Source is where files come from.
type Source interface {
	// Read gives the content of a file.
	Read(path string) ([]byte, error)
	// Glob lists the files that match a pattern, sorted.
	Glob(pattern string) ([]string, error)
	// Canonical is the same for all names of a file.
	Canonical(path string) string
}

// Limits against input that never ends.
const (
	errorsMax = 20
	filesMax  = 4096
)

// ParseOptions says what to read besides the first file.
type ParseOptions struct {
	Extra   []string // files read after the first (drbdadm --config-to-test)
	Exclude string   // an include that is left out
}

// Parse reads a configuration. The error joins what is wrong, *Error each; the configuration is then what could be
// understood. Verify must follow before anything believes it.
func Parse(src Source, file string, opt ParseOptions) (*Config, error) {
	p := &parser{src: src, cfg: &Config{}, seen: map[string]bool{}, exclude: opt.Exclude}
	if p.exclude != "" {
		p.exclude = src.Canonical(p.exclude)
	}
	for i, name := range append([]string{file}, opt.Extra...) {
		canonical := src.Canonical(name)
		if p.seen[canonical] {
			continue
		}
		data, err := src.Read(name)
		if i == 0 {
			p.cfg.File = canonical
		}
		if err != nil {
			p.errs = append(p.errs, &Error{Pos: Pos{File: canonical}, Code: 10, Reason: err.Error()})
			continue
		}
		p.file(canonical, data)
	}
	p.finish()
	return p.cfg, join(p.errs)
}

// ParseText reads one file that includes nothing. file is for messages.
func ParseText(file string, data []byte) (*Config, error) {
	return Parse(single{file, data}, file, ParseOptions{})
}

// single is a Source of one file.
type single struct {
	name string
	data []byte
}

func (s single) Read(name string) ([]byte, error) {
	if name != s.name {
		return nil, errNoFile{}
	}
	return s.data, nil
}
func (s single) Glob(string) ([]string, error) { return nil, nil }
func (s single) Canonical(name string) string  { return name }

type errNoFile struct{}

func (errNoFile) Error() string { return "no such file" }

type parser struct {
	src     Source
	cfg     *Config
	seen    map[string]bool // files
	exclude string
	errs    []*Error
	wrong   int            // errors among them, no warnings
	first   map[string]Pos // sections of which there may be one
	within  string         // the resource that is read, or common
	seq     int

	lex  *lexer
	tok  token // the current token
	last token // the one before
}

func (p *parser) fail(pos Pos, reason, hint string) { p.failAs(pos, Syntax, reason, hint) }

func (p *parser) failAs(pos Pos, stage Stage, reason, hint string) {
	if stage != Warn {
		if p.wrong == errorsMax {
			return
		}
		p.wrong++
	}
	p.errs = append(p.errs, &Error{Pos: pos, Stage: stage, Code: 10, Resource: p.within, Reason: reason, Hint: hint})
	if p.wrong == errorsMax {
		p.errs = append(p.errs, &Error{Pos: pos, Stage: Syntax, Code: 10, Reason: "too many errors, the rest is not looked at"})
	}
}

func (p *parser) warn(pos Pos, reason, hint string) { p.failAs(pos, Warn, reason, hint) }

// next goes to the next token. After too many errors there is none.
func (p *parser) next() {
	p.last = p.tok
	if p.wrong >= errorsMax {
		p.tok = token{pos: p.tok.pos}
		return
	}
	p.tok = p.lex.next()
}

// expected complains about the current token, unless the one before it was complained about already.
func (p *parser) expected(what, hint string) {
	if !p.last.broken && !p.tok.broken {
		p.fail(p.tok.pos, what+" expected, but got "+p.tok.String(), hint)
	}
	p.tok.broken = true
}

// punct takes a punctuation token.
func (p *parser) punct(text string) bool {
	if p.tok.is(text) {
		p.next()
		return true
	}
	p.expected("'"+text+"'", "")
	return false
}

// word takes a word or string.
func (p *parser) word(what string) (string, Pos, bool) {
	t := p.tok
	if !t.word() {
		p.expected(what, "")
		return "", t.pos, false
	}
	p.next()
	return t.text, t.pos, true
}

// keyword takes a word that is one.
func (p *parser) keyword(text string) bool {
	if p.tok.kind == tokWord && p.tok.text == text {
		p.next()
		return true
	}
	return false
}

// end takes the ; of a statement. Without one it looks for the next statement.
func (p *parser) end() {
	if !p.punct(";") {
		p.recover()
	}
}

// recover skips to behind the next ; or balanced }, or to before the } of what it is in.
func (p *parser) recover() {
	for depth := 0; p.tok.kind != tokEOF; p.next() {
		switch {
		case p.tok.is("{"):
			depth++
		case p.tok.is("}"):
			if depth == 0 {
				return
			}
			if depth--; depth == 0 {
				p.next()
				return
			}
		case p.tok.is(";") && depth == 0:
			p.next()
			return
		}
	}
}

// block calls f for each statement up to the closing }. f takes the whole statement; the keyword is current.
func (p *parser) block(what string, f func(key token)) {
	open := p.tok.pos
	if !p.punct("{") {
		p.recover()
		return
	}
	p.statements(what, open, f)
}

func (p *parser) statements(what string, open Pos, f func(key token)) {
	for !p.tok.is("}") {
		key := p.tok
		switch {
		case key.kind == tokEOF:
			if !p.last.broken {
				p.fail(open, "the { of "+what+" is never closed", "add }")
			}
			p.tok.broken = true
			return
		case p.keyword("skip"):
			p.skip(key.pos)
			continue
		case key.kind != tokWord:
			p.expected("a keyword of "+what, "")
			if key.is(";") {
				p.next()
			} else {
				p.recover()
			}
			continue
		}
		f(key)
	}
	p.next()
}

// skip leaves out a section, whatever is in it.
func (p *parser) skip(at Pos) {
	for depth := 0; ; p.next() {
		switch {
		case p.tok.kind == tokEOF:
			p.fail(at, "the end of the file comes before the end of what is skipped here", "count the braces")
			return
		case p.tok.is("{"):
			depth++
		case p.tok.is("}"):
			if depth <= 1 {
				if depth == 1 {
					p.next()
				}
				return
			}
			depth--
		case p.tok.is(";") && depth == 0:
			p.next()
			return
		}
	}
}

// unique notes a section that there may be once.
func (p *parser) unique(key, what string, at Pos) bool {
	if old, twice := p.first[key]; twice {
		p.fail(at, "conflicting use of "+what+": it was first used at "+old.String(), "one of them is too many")
		return false
	}
	p.first[key] = at
	return true
}

// file parses one file, and what it includes.
func (p *parser) file(name string, data []byte) {
	p.seen[name] = true
	p.cfg.Files = append(p.cfg.Files, name)
	if p.first == nil {
		p.first = map[string]Pos{}
	}
	lex, tok, last := p.lex, p.tok, p.last
	p.lex = &lexer{data: string(data), line: 1, file: name, fail: p.fail}
	p.tok, p.last = token{}, token{}
	if strings.HasPrefix(p.lex.data, "\ufeff") {
		p.fail(p.lex.pos(), "the file begins with a byte order mark", "save it as UTF-8 without one")
		p.lex.off = len("\ufeff")
	}
	p.next()
	for p.tok.kind != tokEOF {
		p.top()
	}
	p.lex, p.tok, p.last = lex, tok, last
}

var topWords = []string{"global", "common", "resource", "skip", "include"}

const requirePrefix = "require-drbd-module-version-"

func (p *parser) top() {
	key := p.tok
	if key.kind == tokWord {
		p.next()
		switch key.text {
		case "include":
			p.include()
			return
		case "global":
			p.global(key.pos)
			return
		case "common":
			s := &Sections{Pos: key.pos}
			ok := p.unique("common", "section common", key.pos)
			path := "common"
			if !ok {
				path += " again " + key.pos.String()
			}
			p.within = "common"
			p.common(s, path)
			p.within = ""
			if ok {
				p.cfg.Common = s
			}
			return
		case "resource":
			p.resource(key.pos)
			p.within = ""
			return
		case "skip":
			p.skip(key.pos)
			return
		}
		if op, ok := strings.CutPrefix(key.text, requirePrefix); ok && slices.Contains([]string{"eq", "ne", "gt", "ge", "lt", "le"}, op) {
			version, pos, ok := p.word("a version")
			if ok && (strings.Trim(version, "0123456789.") != "" || strings.Count(version, ".") > 2) {
				p.fail(pos, "'"+version+"' is no version", "for example 9.0.16")
			}
			p.cfg.Requires = append(p.cfg.Requires, Require{key.pos, op, version})
			p.end()
			return
		}
	}
	hint := didYouMean(key.text, topWords)
	if key.is("}") {
		hint = "there is one } too many above"
	}
	p.fail(key.pos, "global, common, resource, skip, include or "+requirePrefix+"{eq,ne,gt,ge,lt,le} expected, but got "+key.String(), hint)
	p.recoverTop()
}

// recoverTop looks for the next section at top level.
func (p *parser) recoverTop() {
	for p.tok.kind != tokEOF {
		if p.tok.kind == tokWord && slices.Contains(topWords, p.tok.text) {
			return
		}
		if p.tok.is("}") {
			p.next()
			continue
		}
		p.recover()
	}
}

// include reads the files a pattern names.
func (p *parser) include() {
	pattern, at, ok := p.word("a file or pattern")
	if !ok {
		p.recover()
		return
	}
	wrong := p.wrong
	if p.end(); p.wrong > wrong {
		return
	}
	if pattern == "" {
		p.fail(at, "the name of the file is empty", "")
		return
	}
	if !strings.HasPrefix(pattern, "/") {
		pattern = path.Join(path.Dir(at.File), pattern)
	}
	files := []string{pattern}
	if strings.ContainsAny(pattern, "*?[") {
		var err error
		if files, err = p.src.Glob(pattern); err != nil {
			p.fail(at, "include "+pattern+": "+err.Error(), "")
			return
		}
	}
	for _, f := range files {
		name := p.src.Canonical(f)
		if p.seen[name] || name == p.exclude {
			continue
		}
		data, err := p.src.Read(f)
		switch {
		case err != nil:
			p.fail(at, "cannot include "+f+": "+err.Error(), "")
		case len(p.seen) >= filesMax:
			p.fail(at, "too many files are included", "")
			return
		default:
			p.file(name, data)
		}
	}
}

func (p *parser) global(at Pos) {
	s := &Section{Pos: at}
	if p.unique("global", "section global", at) {
		if len(p.cfg.Resources) > 0 {
			p.warn(at, "section global stands after a resource", "put it in front of all")
		}
		p.cfg.Global = s
	}
	p.options(s, "global", false)
}

// common reads what common and a template have.
func (p *parser) common(s *Sections, path string) {
	p.block("common", func(key token) {
		switch key.text {
		case "on", "floating", "stacked-on-top-of":
			p.fail(key.pos, "in common there can be no host sections", "move it to a resource")
			p.recover()
			return
		}
		p.next()
		if !p.section(s, key, path) {
			p.unknown(key, "common", append(sectionWords, "protocol"))
		}
	})
}

// unknown complains about a statement whose keyword was taken, and skips it.
func (p *parser) unknown(key token, what string, names []string) {
	hint := didYouMean(key.text, names)
	for _, s := range specs {
		if s.Name == key.text {
			hint = "it belongs into section " + s.Section
		}
	}
	if key.text == "include" {
		hint = "include only stands outside of all sections"
	}
	p.fail(key.pos, "'"+key.text+"' is no keyword of "+what, hint)
	p.recover()
}

var sectionWords = []string{"net", "disk", "syncer", "startup", "handlers", "options", "proxy"}

// section reads a section or statement that resources and common have; false for another keyword.
func (p *parser) section(s *Sections, key token, path string) bool {
	name := key.text
	if name == "protocol" {
		ok := p.unique(path+":protocol", "statement protocol", key.pos)
		if o, good := p.option("net", key); good && ok {
			o.From = "protocol"
			s.add("net", o)
		}
		return true
	}
	if !slices.Contains(sectionWords, name) {
		return false
	}
	ok := p.unique(path+":section "+name, "section "+name, key.pos)
	got := &Section{Pos: key.pos}
	p.options(got, name, false)
	if !ok {
		return true
	}
	if len(got.Plugins) > 0 {
		s.Proxy = &Section{Pos: key.pos, Plugins: got.Plugins}
	}
	for _, o := range got.Options {
		to := name
		switch {
		case name == "syncer":
			to = syncer[o.From].section
			o.From = "syncer"
		case name == "disk" && o.Name == "fencing":
			to, o.From = "net", "disk"
		}
		s.add(to, o)
	}
	return true
}

// add puts an option into a section, which may be new.
func (s *Sections) add(section string, o Option) {
	for _, x := range s.named() {
		if x.name != section {
			continue
		}
		if *x.at == nil {
			*x.at = &Section{Pos: o.Pos}
		}
		(*x.at).Options = append((*x.at).Options, o)
	}
}

// orNil is the section, nil if nothing is in it: that is what drbdadm makes of an empty one.
func (s *Section) orNil() *Section {
	if len(s.Options) == 0 && len(s.Plugins) == 0 {
		return nil
	}
	return s
}

// options reads { option; ... }. In a connection only peer-device options are disk options.
func (p *parser) options(s *Section, name string, peerOnly bool) {
	p.block(name, func(key token) {
		p.next()
		if name == "proxy" && key.text == "plugin" {
			p.plugins(s)
			return
		}
		o, ok := p.option(name, key)
		if !ok {
			return
		}
		if sp := Find(name, o.Name); peerOnly && sp != nil && !sp.Peer && sp.Name != "bitmap" {
			p.fail(o.Pos, o.Name+" is an option of the disk, not of a connection", "move it to disk of the resource or volume")
			return
		}
		if old, twice := s.Options.Get(o.Name); twice && old.Value != o.Value {
			p.failAs(o.Pos, Expand, o.Name+" stands twice in this section, with "+old.Value+" and "+o.Value, "remove one")
		}
		s.Options = append(s.Options, o)
	})
}

func (p *parser) plugins(s *Section) {
	p.block("plugin", func(key token) {
		p.next()
		var words []string
		for p.tok.word() {
			words = append(words, p.tok.text)
			p.next()
		}
		s.Plugins = append(s.Plugins, strings.Join(strings.Fields(strings.Join(append([]string{key.text}, words...), " ")), " "))
		p.end()
	})
}

// spec finds the row of a keyword in a section.
func (p *parser) spec(section, name string) *Spec {
	switch section {
	case "syncer":
		if to, ok := syncer[name]; ok {
			return Find(to.section, to.name)
		}
		return nil
	case "disk":
		if name == "fencing" { // 8.3 and 8.4
			return Find("net", name)
		}
	}
	return Find(section, name)
}

func optionNames(section string) []string {
	var names []string
	if section == "syncer" {
		for n := range syncer {
			names = append(names, n)
		}
		slices.Sort(names)
		return names
	}
	for _, s := range specs {
		if s.Section == section {
			names = append(names, s.Name)
		}
	}
	return names
}

// option reads the rest of "NAME [VALUE];".
func (p *parser) option(section string, key token) (Option, bool) {
	o := Option{Name: key.text, Pos: key.pos}
	p.seq++
	o.seq = p.seq
	sp := p.spec(section, o.Name)
	negated := false
	if base, ok := strings.CutPrefix(o.Name, "no-"); ok && sp == nil {
		if b := p.spec(section, base); b != nil && b.Kind == Bool {
			sp, negated = b, true
		}
	}
	if sp == nil {
		p.unknownOption(section, key)
		return o, false
	}
	if section == "syncer" {
		o.From = o.Name
		if negated {
			o.From = o.Name[len("no-"):]
		}
	}
	o.Name = sp.Name
	value := p.tok
	if sp.Kind == Names {
		var hosts []string
		for p.tok.word() {
			hosts = append(hosts, p.tok.text)
			p.next()
		}
		if o.Value = strings.Join(strings.Fields(strings.Join(hosts, " ")), " "); o.Value == "" {
			p.expected("a host", "")
		}
		p.end()
		return o, o.Value != ""
	}
	bare := p.tok.is(";")
	switch {
	case bare && sp.Kind == Flag:
		o.Flag = true
	case bare && sp.Kind == Bool:
		o.Value = "yes"
		if negated {
			o.Value = "no"
		}
	case bare:
		p.fail(key.pos, o.Name+" needs a value", "")
		p.next()
		return o, false
	case sp.Kind == Flag && p.tok.kind == tokWord && p.tok.text == "yes":
		o.Flag = true
		p.next()
	case sp.Kind == Flag:
		p.expected("';'", o.Name+" has no value")
		p.recover()
		return o, false
	default:
		text, _, ok := p.word("a value of " + o.Name)
		if !ok {
			p.recover()
			return o, false
		}
		o.Value = text
	}
	good := true
	if !o.Flag && !bare && !value.broken {
		if why := sp.Check(o.Value); why != "" {
			p.fail(value.pos, "the value of "+o.Name+", '"+o.Value+"', "+why, "")
			good = false
		} else if negated {
			p.warn(key.pos, "no-"+o.Name+" with the value "+o.Value+" is read as "+o.Name+" "+o.Value, "write that")
		}
	}
	p.end()
	return o, good && !value.broken
}

func (p *parser) unknownOption(section string, key token) {
	hint := ""
	for _, s := range specs {
		if s.Name == key.text && s.Section != section {
			hint = "it belongs into section " + s.Section
		}
	}
	for _, k := range []string{"device", "disk", "meta-disk", "on", "address", "resource", "volume"} {
		if key.text == k {
			hint = "is a } missing above?"
		}
	}
	known := optionNames(section)
	if hint == "" {
		hint = didYouMean(key.text, known)
	}
	if hint == "" && len(known) <= 20 {
		hint = "known are " + strings.Join(known, ", ")
	}
	p.fail(key.pos, "'"+key.text+"' is no option of section "+section, hint)
	p.recover()
}
