package drbdconf

import (
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const (
	minorMax  = 1<<20 - 1
	volumeMax = 65534
	nodeIDMax = 32 // the check of drbdadm; 31 in practice
	indexMax  = 9999
)

var resourceName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

func (p *parser) resource(at Pos) {
	name, pos, ok := p.word("the name of a resource")
	if !ok {
		p.recoverTop()
		return
	}
	r := &Resource{Name: name}
	r.Pos = at
	p.within = name
	if name == "all" || !resourceName.MatchString(name) || strings.Trim(name, ".") == "" {
		p.fail(pos, "'"+name+"' is no name for a resource", "1 to 64 of A-Z a-z 0-9 . _ -, and not all")
	}
	path := "resource " + name
	if p.unique(path, path, at) {
		p.cfg.Resources = append(p.cfg.Resources, r)
	} else {
		path += " again " + at.String()
	}
	p.block("resource "+name, func(key token) {
		p.next()
		p.resourceStatement(r, key, path)
	})
}

var resourceWords = append([]string{"protocol", "template-file", "device", "disk", "meta-disk", "flexible-meta-disk", "volume", "on", "ignore-on", "floating",
	"stacked-on-top-of", "connection", "connection-mesh"}, sectionWords...)

func (p *parser) resourceStatement(r *Resource, key token, path string) {
	switch key.text {
	case "template-file":
		p.template(r, key.pos, path)
	case "volume":
		p.volume(&r.Volumes, key.pos, path)
	case "device", "meta-disk", "flexible-meta-disk", "tiebreaker":
		p.volumeStatement(implicit(&r.Volumes, key.pos), key, path)
	case "disk":
		if !p.tok.is("{") {
			p.volumeStatement(implicit(&r.Volumes, key.pos), key, path)
			return
		}
		p.section(&r.Sections, key, path)
	case "on":
		h := &Host{Pos: key.pos, Kind: On, NodeID: -1}
		for p.tok.word() {
			h.Names = append(h.Names, p.tok.text)
			p.next()
		}
		if len(h.Names) == 0 || slices.Contains(h.Names, "") {
			p.expected("the name of a host", "")
			p.recover()
			return
		}
		p.host(r, h, path)
	case "ignore-on":
		if name, _, ok := p.word("the name of a host"); ok {
			r.IgnoreOn = append(r.IgnoreOn, name)
		}
		p.end()
	case "floating":
		h := &Host{Pos: key.pos, Kind: Floating, NodeID: -1, Address: p.address()}
		if h.Address == nil {
			p.recover()
			return
		}
		if p.tok.is(";") {
			p.next()
			p.addHost(r, h, path)
			return
		}
		p.host(r, h, path)
	case "stacked-on-top-of":
		h := &Host{Pos: key.pos, Kind: Stacked, NodeID: -1}
		var ok bool
		if h.Lower, _, ok = p.word("the name of a resource"); !ok {
			p.recover()
			return
		}
		p.host(r, h, path)
	case "connection":
		p.connection(r, key.pos)
	case "connection-mesh":
		p.mesh(r, key.pos, path)
	default:
		if !p.section(&r.Sections, key, path) {
			p.unknown(key, "a resource", resourceWords)
		}
	}
}

func (p *parser) template(r *Resource, at Pos, where string) {
	name, _, ok := p.word("a file")
	p.end()
	if !ok || p.wrong >= errorsMax || !p.unique(where+":template-file", "statement template-file", at) {
		return
	}
	if !strings.HasPrefix(name, "/") {
		name = path.Join(path.Dir(at.File), name)
	}
	canonical := p.src.Canonical(name)
	data, err := p.src.Read(name)
	if err != nil {
		p.fail(at, "cannot read the template "+name+": "+err.Error(), "")
		return
	}
	r.Template = canonical
	lex, tok, last, first := p.lex, p.tok, p.last, p.first
	p.lex = &lexer{data: string(data), line: 1, file: canonical, fail: p.fail}
	p.tok, p.last, p.first = token{}, token{}, map[string]Pos{}
	if !slices.Contains(p.cfg.Files, canonical) {
		p.cfg.Files = append(p.cfg.Files, canonical)
	}
	p.next()
	for p.tok.kind != tokEOF {
		key := p.tok
		if key.kind == tokWord && key.text == "common" && p.unique("common", "section common", key.pos) {
			p.next()
			r.TemplateFor = &Sections{Pos: key.pos}
			p.common(r.TemplateFor, "common")
			continue
		}
		p.expected("common", "a template has one section common and nothing else")
		break
	}
	p.lex, p.tok, p.last, p.first = lex, tok, last, first
}

// implicit is volume 0, written without volume 0 { }.
func implicit(list *[]*Volume, at Pos) *Volume {
	for _, v := range *list {
		if v.Implicit {
			return v
		}
	}
	v := &Volume{Pos: at, Implicit: true}
	*list = append(*list, v)
	return v
}

func (p *parser) volume(list *[]*Volume, at Pos, path string) {
	n, _, ok := p.number("the number of a volume", 0, volumeMax)
	if !ok {
		p.recover()
		return
	}
	v := &Volume{Pos: at, Number: n}
	path += ":volume " + strconv.Itoa(n)
	if p.unique(path, "volume "+strconv.Itoa(n), at) {
		*list = append(*list, v)
	} else {
		path += " again " + at.String()
	}
	p.block("volume "+strconv.Itoa(n), func(key token) {
		p.next()
		if !p.volumeStatement(v, key, path) {
			p.unknown(key, "a volume", []string{"device", "disk", "meta-disk", "flexible-meta-disk", "tiebreaker"})
		}
	})
}

// volumeStatement reads a statement of a volume; false for another keyword.
func (p *parser) volumeStatement(v *Volume, key token, path string) bool {
	switch key.text {
	case "device":
		ok := p.unique(path+":device", "statement device", key.pos)
		if d := p.device(); d != nil && ok {
			v.Device = d
		}
	case "disk":
		if p.tok.is("{") {
			ok := p.unique(path+":disk{}", "section disk", key.pos)
			s := &Section{Pos: key.pos}
			p.options(s, "disk", false)
			if ok {
				v.Options = s.orNil()
			}
			return true
		}
		ok := p.unique(path+":disk", "statement disk", key.pos)
		disk, pos, good := p.word("a disk, or none")
		if good && disk == "" {
			p.fail(pos, "the name of the disk is empty", "none is no disk")
		}
		if good && ok {
			v.Disk, v.DiskPos = disk, pos
		}
	case "meta-disk", "flexible-meta-disk":
		ok := p.unique(path+":meta-disk", "statement meta-disk", key.pos)
		if m := p.metaDisk(key.pos); m != nil && ok {
			v.MetaDisk = m
		}
	case "tiebreaker":
		ok := p.unique(path+":tiebreaker", "statement tiebreaker", key.pos)
		o := Option{Name: "tiebreaker", Value: "yes", Pos: key.pos}
		if p.tok.word() {
			if o.Value = p.tok.text; o.Value != "yes" && o.Value != "no" {
				p.fail(p.tok.pos, "the value of tiebreaker, '"+o.Value+"', is neither yes nor no", "")
				ok = false
			}
			p.next()
		}
		if ok {
			v.Tiebreaker = &o
		}
	default:
		return false
	}
	p.end()
	return true
}

// number takes a number of at most eight digits.
func (p *parser) number(what string, least, most int) (int, Pos, bool) {
	t := p.tok
	if t.kind != tokWord || strings.Trim(t.text, "0123456789") != "" {
		p.expected(what, "")
		return 0, t.pos, false
	}
	p.next()
	n, err := strconv.Atoi(t.text)
	if err != nil || len(t.text) > 8 || n < least || n > most {
		p.fail(t.pos, what+", "+t.text+", is out of range "+strconv.Itoa(least)+" to "+strconv.Itoa(most), "")
		return 0, t.pos, false
	}
	return n, t.pos, true
}

// device reads "minor N" or "NAME [minor N]".
func (p *parser) device() *Device {
	d := &Device{Pos: p.tok.pos, Minor: -1}
	named := false
	if !p.keyword("minor") {
		name, _, ok := p.word("a device")
		if !ok {
			return nil
		}
		named = true
		d.Name = "/dev/" + strings.TrimPrefix(name, "/dev/")
		if !p.tok.is(";") && !p.keyword("minor") {
			p.expected("minor or ';'", "")
			return nil
		}
	}
	if !named || p.last.text == "minor" {
		n, _, ok := p.number("a minor number", 0, minorMax)
		if !ok {
			return nil
		}
		d.Minor = n
	}
	if !named {
		return d
	}
	rest, ok := strings.CutPrefix(d.Name, "/dev/drbd")
	switch {
	case !ok || rest == "" || strings.Trim(rest, "0123456789") != "" && (rest[0] != '_' || len(rest) == 1):
		p.fail(d.Pos, "the name of the device, "+d.Name+", is neither /dev/drbdN nor /dev/drbd_NAME", "hawser makes /dev/hawser/RES/VOL too")
		return nil
	case rest[0] == '_':
		if d.Minor < 0 {
			p.fail(d.Pos, d.Name+" says no minor number", d.Name[len("/dev/"):]+" minor N")
			return nil
		}
		p.warn(d.Pos, "names like "+d.Name+" are deprecated", "/dev/drbd"+strconv.Itoa(d.Minor))
		return d
	}
	n, err := strconv.Atoi(rest)
	switch {
	case err != nil || n > minorMax:
		p.fail(d.Pos, "the minor number of "+d.Name+" is out of range 0 to "+strconv.Itoa(minorMax), "")
		return nil
	case d.Minor >= 0 && d.Minor != n:
		p.fail(d.Pos, "the minor number "+strconv.Itoa(d.Minor)+" is not that of "+d.Name, "leave one of them out")
		return nil
	}
	d.Minor, d.Name = n, "/dev/drbd"+strconv.Itoa(n)
	return d
}

func (p *parser) metaDisk(at Pos) *MetaDisk {
	m := &MetaDisk{Pos: at, Index: -1}
	var ok bool
	if m.Path, _, ok = p.word("internal, or a device"); !ok {
		return nil
	}
	if m.Path == "" {
		p.fail(at, "the name of the meta-disk is empty", Internal)
		return nil
	}
	if p.tok.is("[") {
		p.next()
		if m.Index, _, ok = p.number("an index", 0, indexMax); !ok || !p.punct("]") {
			return nil
		}
		if m.Path == Internal {
			p.fail(at, "internal metadata has no index", "")
			return nil
		}
	}
	return m
}

// families are the words for address families, and how they are dumped.
var families = map[string]string{"ipv4": "ipv4", "ipv6": "ipv6", "ssocks": "ssocks", "sci": "ssocks", "sdp": "sdp"}

func (p *parser) address() *Address {
	a := &Address{Pos: p.tok.pos, Family: "ipv4"}
	if f, ok := families[p.tok.text]; ok && p.tok.kind == tokWord {
		a.Family = f
		p.next()
	}
	if a.Family == "ipv6" {
		if !p.tok.is("[") {
			p.expected("'['", "ipv6 [ADDRESS]:PORT")
			return nil
		}
		at := p.tok.pos
		text, ok := p.lex.bracketed()
		p.next()
		if !ok {
			p.fail(at, "the address that begins here has no ]", "ipv6 [ADDRESS]:PORT")
			return nil
		}
		a.Text = text
	} else {
		if p.tok.is("[") {
			p.expected("an IPv4 address", "write ipv6 in front of an IPv6 address")
			return nil
		}
		var ok bool
		if a.Text, _, ok = p.word("an address"); !ok {
			return nil
		}
	}
	ip, err := netip.ParseAddr(a.Text)
	if err != nil || ip.Is4() == (a.Family == "ipv6") || strings.ContainsAny(a.Text, " \t\"\\") {
		p.fail(a.Pos, "'"+a.Text+"' is no "+map[bool]string{true: "IPv6", false: "IPv4"}[a.Family == "ipv6"]+" address", "names are not resolved")
		if !p.tok.is(":") {
			p.tok.broken = true
			return nil
		}
	}
	a.IP = ip
	if !p.punct(":") {
		return nil
	}
	a.Port = p.port()
	if a.Port == "" || err != nil {
		return nil
	}
	return a
}

// port takes a port and gives it as written, "" if it is wrong.
func (p *parser) port() string {
	text := p.tok.text
	if _, _, ok := p.number("a port", 1, 65535); !ok {
		return ""
	}
	return text
}

func (p *parser) addHost(r *Resource, h *Host, path string) bool {
	names := h.Names
	switch h.Kind {
	case Floating:
		names = []string{h.Address.String()}
	case Stacked:
		names = []string{h.Lower}
	}
	ok := true
	for _, n := range names {
		ok = p.unique(path+":"+strconv.Itoa(int(h.Kind))+" "+n, "host section "+n, h.Pos) && ok
	}
	if ok {
		r.Hosts = append(r.Hosts, h)
	}
	return ok
}

func (p *parser) host(r *Resource, h *Host, path string) {
	if !p.addHost(r, h, path) {
		path += " again"
	}
	path += ":" + h.label() + " " + h.Pos.String()
	p.block(h.label(), func(key token) {
		p.next()
		switch key.text {
		case "node-id":
			ok := p.unique(path+":node-id", "statement node-id", key.pos)
			if n, _, good := p.number("node-id", 0, nodeIDMax); good && ok {
				h.NodeID = n
			}
			p.end()
		case "address":
			ok := p.unique(path+":address", "statement address", key.pos)
			a := p.address()
			p.end()
			if h.Kind == Floating {
				p.fail(key.pos, "a floating host section has its address in front", "remove the statement")
			} else if ok {
				h.Address = a
			}
		case "options":
			ok := p.unique(path+":options", "section options", key.pos)
			s := &Section{Pos: key.pos}
			p.options(s, "options", false)
			if ok {
				h.Options = s.orNil()
			}
		case "proxy":
			ok := p.unique(path+":proxy", "section proxy", key.pos)
			if x := p.proxy(key.pos); ok {
				h.Proxy = x
			}
		case "volume":
			p.volume(&h.Volumes, key.pos, path)
		case "disk", "meta-disk", "flexible-meta-disk", "device", "tiebreaker":
			if h.Kind == Stacked && key.text != "device" {
				p.fail(key.pos, "a host section of a stacked resource has no "+key.text, "the device of the resource below is its disk")
				p.recover()
				return
			}
			p.volumeStatement(implicit(&h.Volumes, key.pos), key, path)
		default:
			p.unknown(key, "a host section", []string{"node-id", "address", "options", "proxy", "volume", "device", "disk", "meta-disk"})
		}
	})
}

// proxy reads "on HOST... { inside ...; outside ...; }".
func (p *parser) proxy(at Pos) *Proxy {
	x := &Proxy{Pos: at}
	if !p.keyword("on") {
		p.expected("on", "")
		p.recover()
		return x
	}
	for p.tok.word() {
		x.Hosts = append(x.Hosts, p.tok.text)
		p.next()
	}
	if len(x.Hosts) == 0 {
		p.expected("the name of a host", "")
	}
	p.block("proxy", func(key token) {
		p.next()
		switch key.text {
		case "inside":
			x.Inside = p.address()
			p.end()
		case "outside":
			x.Outside = p.address()
			p.end()
		case "options":
			s := &Section{Pos: key.pos}
			p.options(s, "proxy", false)
			if x.Options == nil {
				x.Options = s.orNil()
			} else {
				p.fail(key.pos, "conflicting use of section options: it was first used at "+x.Options.Pos.String(), "")
			}
		default:
			p.unknown(key, "a proxy", []string{"inside", "outside", "options"})
		}
	})
	return x
}

func (p *parser) connection(r *Resource, at Pos) {
	c := &Connection{Pos: at}
	if p.tok.word() {
		c.Name = p.tok.text
		p.next()
		p.warn(at, "names of connections are deprecated, "+c.Name+" has no effect", "")
	}
	path := "connection " + at.String()
	wrong := p.wrong
	p.block("connection", func(key token) {
		p.next()
		switch key.text {
		case "host":
			p.endpoint(&c.Endpoints, key.pos)
		case "path":
			x := Path{Pos: key.pos}
			wrong := p.wrong
			p.block("path", func(key token) {
				p.next()
				if key.text != "host" {
					p.unknown(key, "a path", []string{"host"})
					return
				}
				p.endpoint(&x.Endpoints, key.pos)
			})
			if len(x.Endpoints) != 2 && p.wrong == wrong {
				p.fail(key.pos, "a path needs two hosts, this one has "+strconv.Itoa(len(x.Endpoints)), "")
			}
			c.Paths = append(c.Paths, x)
		case "net", "disk":
			ok := p.unique(path+":"+key.text, "section "+key.text, key.pos)
			s := &Section{Pos: key.pos}
			p.options(s, key.text, key.text == "disk")
			switch {
			case !ok:
			case key.text == "net":
				c.Net = s.orNil()
			default:
				c.Disk = s.orNil()
			}
		case "volume":
			p.peerVolume(c, key.pos, path)
		default:
			p.unknown(key, "a connection", []string{"host", "path", "net", "disk", "volume"})
		}
	})
	switch n := len(c.Endpoints); {
	case p.wrong > wrong:
	case n == 0 && len(c.Paths) == 0, n == 1, n > 2:
		p.fail(at, "a connection needs two hosts, this one has "+strconv.Itoa(n), "")
		return
	case n == 2 && len(c.Paths) > 0:
		p.fail(at, "a connection has either two hosts or paths, not both", "put the two hosts into a path")
		return
	}
	r.Connections = append(r.Connections, c)
}

func (p *parser) peerVolume(c *Connection, at Pos, path string) {
	n, _, ok := p.number("the number of a volume", 0, volumeMax)
	if !ok {
		p.recover()
		return
	}
	v := &PeerVolume{Pos: at, Number: n}
	ok = p.unique(path+":volume "+strconv.Itoa(n), "volume "+strconv.Itoa(n), at)
	p.block("volume "+strconv.Itoa(n), func(key token) {
		p.next()
		if key.text != "disk" {
			p.unknown(key, "a volume of a connection", []string{"disk"})
			return
		}
		s := &Section{Pos: key.pos}
		p.options(s, "disk", true)
		if v.Disk != nil {
			p.fail(key.pos, "conflicting use of section disk: it was first used at "+v.Disk.Pos.String(), "")
			return
		}
		v.Disk = s.orNil()
	})
	if ok {
		c.Volumes = append(c.Volumes, v)
	}
}

func (p *parser) endpoint(list *[]Endpoint, at Pos) {
	e := Endpoint{Pos: at}
	var ok bool
	if e.Host, _, ok = p.word("the name of a host"); !ok {
		p.recover()
		return
	}
	if p.keyword("address") {
		if e.Address = p.address(); e.Address == nil {
			p.recover()
			return
		}
	}
	if p.keyword("port") {
		if e.Port = p.port(); e.Port == "" {
			p.recover()
			return
		}
	}
	*list = append(*list, e)
	last := &(*list)[len(*list)-1]
	if p.keyword("via") {
		if p.keyword("proxy") {
			last.Proxy = p.proxy(at) // there is no ; after it
			return
		}
		if !p.keyword("outside-address") {
			p.expected("proxy or outside-address", "")
			p.recover()
			return
		}
		last.Outside = p.address()
	}
	p.end()
}

func (p *parser) mesh(r *Resource, at Pos, path string) {
	ok := p.unique(path+":connection-mesh", "section connection-mesh", at)
	m := &Mesh{Pos: at}
	p.block("connection-mesh", func(key token) {
		p.next()
		switch key.text {
		case "hosts":
			for p.tok.word() {
				m.Hosts = append(m.Hosts, p.tok.text)
				p.next()
			}
			p.end()
		case "net":
			s := &Section{Pos: key.pos}
			p.options(s, "net", false)
			if m.Net != nil {
				p.fail(key.pos, "conflicting use of section net: it was first used at "+m.Net.Pos.String(), "")
				return
			}
			m.Net = s.orNil()
		default:
			p.unknown(key, "a connection-mesh", []string{"hosts", "net"})
		}
	})
	if ok {
		r.Mesh = m
	}
}

// finish ties resources to common.
func (p *parser) finish() {
	for _, r := range p.cfg.Resources {
		r.common = p.cfg.Common
	}
}
