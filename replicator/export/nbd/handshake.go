package nbd

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/hawser-ha/hawser/replicator/export"
)

// errLeft says that the client ended the handshake in an orderly way.
var errLeft = errors.New("client left")

// handshake is what has been negotiated. STARTTLS forgets all of it but fixed and noZeroes.
type handshake struct {
	tls      *tls.Config // nil: none to be had
	secure   bool        // TLS is on
	simple   bool        // never agree to structured replies
	fixed    bool
	noZeroes bool

	metaExport string
	metaBase   bool // base:allocation was selected, for metaExport
	allocation bool // BLOCK_STATUS may be used
}

// negotiate runs the handshake until the transmission phase (nil), the client leaves (errLeft), or the
// connection has to be dropped.
func (c *conn) negotiate() error {
	_ = c.base.SetDeadline(time.Now().Add(c.srv.cfg.HandshakeTimeout))
	if c.down.Load() {
		return errLeft
	}
	hello := binary.BigEndian.AppendUint64(nil, magicServer)
	hello = binary.BigEndian.AppendUint64(hello, magicOption)
	hello = binary.BigEndian.AppendUint16(hello, flagFixedNewstyle|flagNoZeroes)
	if _, err := c.nc.Write(hello); err != nil {
		return err
	}
	var flags [4]byte
	if err := c.readFull(flags[:]); err != nil {
		return err
	}
	f := binary.BigEndian.Uint32(flags[:])
	if f&^(flagFixedNewstyle|flagNoZeroes) != 0 {
		return fmt.Errorf("%w: client flags %#x", errProtocol, f)
	}
	c.fixed, c.noZeroes = f&flagFixedNewstyle != 0, f&flagNoZeroes != 0
	for {
		if ready, err := c.option(); ready || err != nil {
			if err == nil {
				err = c.base.SetDeadline(time.Time{})
			}
			return err
		}
	}
}

// option serves one option. It returns true when the transmission phase follows.
func (c *conn) option() (bool, error) {
	if err := c.need(16); err != nil {
		return false, err
	}
	h := c.in[c.r : c.r+16]
	c.r += 16
	if binary.BigEndian.Uint64(h) != magicOption {
		return false, fmt.Errorf("%w: bad option magic", errProtocol)
	}
	opt, n := binary.BigEndian.Uint32(h[8:]), binary.BigEndian.Uint32(h[12:])
	if !c.fixed && opt != optExportName {
		return false, fmt.Errorf("%w: option %d without fixed newstyle", errProtocol, opt)
	}
	if n > optionMax {
		if n > optionDiscardMax || opt == optExportName {
			return false, fmt.Errorf("%w: option %d of %d bytes", errProtocol, opt, n)
		}
		if err := c.discard(int64(n)); err != nil {
			return false, err
		}
		return false, c.refuse(opt, repErrTooBig, "option is too long")
	}
	data := make([]byte, n)
	if err := c.readFull(data); err != nil {
		return false, err
	}
	if c.tls != nil && !c.secure && opt != optStartTLS && opt != optAbort {
		if opt == optExportName {
			return false, fmt.Errorf("%w: export name before TLS", errProtocol)
		}
		return false, c.refuse(opt, repErrTLSReqd, "this server wants TLS")
	}
	switch opt {
	case optExportName:
		return true, c.exportName(string(data))
	case optAbort:
		_ = c.reply(opt, repAck, nil) // the client may have gone already
		return false, errLeft
	case optInfo, optGo:
		return c.info(opt, data)
	case optListMetaContext, optSetMetaContext:
		return false, c.metaContext(opt, data)
	case optList, optStartTLS, optStructuredReply:
		if len(data) > 0 {
			return false, c.refuse(opt, repErrInvalid, "option takes no data")
		}
	}
	switch opt {
	case optList:
		return false, c.listExports()
	case optStartTLS:
		return false, c.startTLS()
	case optStructuredReply:
		if !c.simple {
			c.structured = true
			return false, c.reply(opt, repAck, nil)
		}
	}
	return false, c.refuse(opt, repErrUnsup, "option is not supported")
}

// reply sends one option reply.
func (c *conn) reply(opt, typ uint32, payload []byte) error {
	b := make([]byte, 0, 20+len(payload))
	b = binary.BigEndian.AppendUint64(b, magicOptReply)
	b = binary.BigEndian.AppendUint32(b, opt)
	b = binary.BigEndian.AppendUint32(b, typ)
	b = binary.BigEndian.AppendUint32(b, uint32(len(payload)))
	_, err := c.nc.Write(append(b, payload...))
	return err
}

func (c *conn) refuse(opt, typ uint32, text string) error {
	return c.reply(opt, typ, []byte(text[:min(len(text), nameMax)]))
}

func (c *conn) listExports() error {
	for _, e := range c.srv.list() {
		b := binary.BigEndian.AppendUint32(nil, uint32(len(e.name)))
		b = append(b, e.name...)
		if err := c.reply(optList, repServer, append(b, e.description...)); err != nil {
			return err
		}
	}
	return c.reply(optList, repAck, nil)
}

// startTLS switches to TLS. What the client sent behind the option in plain text costs it the connection.
func (c *conn) startTLS() error {
	switch {
	case c.secure:
		return c.refuse(optStartTLS, repErrInvalid, "TLS is on already")
	case c.tls == nil:
		return c.refuse(optStartTLS, repErrPolicy, "TLS is not configured here")
	case c.r != c.w:
		return fmt.Errorf("%w: plain text after STARTTLS", errProtocol)
	}
	if err := c.reply(optStartTLS, repAck, nil); err != nil {
		return err
	}
	t := tls.Server(c.base, c.tls)
	if err := t.Handshake(); err != nil { // under the handshake deadline
		return fmt.Errorf("tls: %w", err)
	}
	c.nc, c.secure = t, true
	c.structured, c.metaExport, c.metaBase = false, "", false
	return nil
}

// exportName is the old way into the transmission phase: no option reply, and no way to say why not.
func (c *conn) exportName(name string) error {
	e := c.srv.lookup(name)
	if e == nil {
		return fmt.Errorf("no export %q", name)
	}
	if err := c.open(e, name); err != nil {
		return err
	}
	b := binary.BigEndian.AppendUint64(nil, uint64(c.size.Load()))
	b = binary.BigEndian.AppendUint16(b, c.flags(e.volume.Limits()))
	if !c.noZeroes {
		b = append(b, make([]byte, 124)...)
	}
	_, err := c.nc.Write(b)
	return err
}

// info serves INFO and GO.
func (c *conn) info(opt uint32, data []byte) (bool, error) {
	if len(data) < 6 {
		return false, c.refuse(opt, repErrInvalid, "option is too short")
	}
	n := uint64(binary.BigEndian.Uint32(data))
	if n > uint64(len(data)-6) || n > nameMax {
		return false, c.refuse(opt, repErrInvalid, "bad length of export name")
	}
	name := string(data[4 : 4+n])
	wanted := data[4+n+2:]
	if len(wanted) != 2*int(binary.BigEndian.Uint16(data[4+n:])) {
		return false, c.refuse(opt, repErrInvalid, "bad number of information requests")
	}
	e := c.srv.lookup(name)
	if e == nil {
		return false, c.refuse(opt, repErrUnknown, fmt.Sprintf("no export %q", name))
	}
	if err := c.open(e, name); err != nil {
		return false, c.refuse(opt, repErrPolicy, err.Error())
	}
	if opt == optInfo { // it only asked whether it could
		defer c.close()
	}
	l := e.volume.Limits()
	b := binary.BigEndian.AppendUint16(nil, infoExport)
	b = binary.BigEndian.AppendUint64(b, uint64(c.size.Load()))
	b = binary.BigEndian.AppendUint16(b, c.flags(l))
	err := c.reply(opt, repInfo, b)
	for ; err == nil && len(wanted) > 0; wanted = wanted[2:] {
		typ := binary.BigEndian.Uint16(wanted)
		b := binary.BigEndian.AppendUint16(nil, typ)
		switch typ {
		case infoName:
			b = append(b, e.name...)
		case infoDescription:
			b = append(b, e.description...)
		case infoBlockSize:
			b = binary.BigEndian.AppendUint32(b, uint32(l.MinBlock))
			b = binary.BigEndian.AppendUint32(b, uint32(max(l.Preferred, l.MinBlock, 512)))
			b = binary.BigEndian.AppendUint32(b, payloadMax)
		default:
			continue
		}
		err = c.reply(opt, repInfo, b)
	}
	if err == nil {
		err = c.reply(opt, repAck, nil)
	}
	return opt == optGo, err
}

// metaContext serves LIST_META_CONTEXT and SET_META_CONTEXT.
func (c *conn) metaContext(opt uint32, data []byte) error {
	if opt == optSetMetaContext {
		c.metaExport, c.metaBase = "", false
	}
	if !c.structured {
		return c.refuse(opt, repErrInvalid, "meta contexts need structured replies")
	}
	name, data, ok := cutString(data)
	if !ok || len(data) < 4 {
		return c.refuse(opt, repErrInvalid, "bad length of export name")
	}
	queries := binary.BigEndian.Uint32(data)
	data = data[4:]
	found := queries == 0 && opt == optListMetaContext
	for range queries {
		var q string
		if q, data, ok = cutString(data); !ok {
			return c.refuse(opt, repErrInvalid, "bad length of query")
		}
		if q == contextAllocation || q == "base:" && opt == optListMetaContext {
			found = true
		}
	}
	if len(data) > 0 {
		return c.refuse(opt, repErrInvalid, "data after the last query")
	}
	if c.srv.lookup(name) == nil {
		return c.refuse(opt, repErrUnknown, fmt.Sprintf("no export %q", name))
	}
	if found {
		id := uint32(0)
		if opt == optSetMetaContext {
			c.metaExport, c.metaBase = name, true
			id = contextAllocationID
		}
		b := binary.BigEndian.AppendUint32(nil, id)
		if err := c.reply(opt, repMetaContext, append(b, contextAllocation...)); err != nil {
			return err
		}
	}
	return c.reply(opt, repAck, nil)
}

// cutString takes a string with a 32-bit length off data.
func cutString(data []byte) (string, []byte, bool) {
	if len(data) < 4 {
		return "", nil, false
	}
	n := binary.BigEndian.Uint32(data)
	if data = data[4:]; n > nameMax || uint64(n) > uint64(len(data)) {
		return "", nil, false
	}
	return string(data[:n]), data[n:], true
}

// open starts the session. Its error is for the client to read.
func (c *conn) open(e *exported, name string) error {
	if err := c.srv.attach(c, e); err != nil {
		return err
	}
	sess, err := e.volume.Open(c.shut, func(size int64) { c.size.Store(size) })
	if err != nil {
		c.srv.detach(c)
		return err
	}
	c.exp, c.sess, c.limits = e, sess, e.volume.Limits()
	c.limits.MinBlock = max(c.limits.MinBlock, 1)
	c.maxIO = payloadMax
	if m := c.limits.MaxIO / c.limits.MinBlock * c.limits.MinBlock; m > 0 {
		c.maxIO = min(m, payloadMax)
	}
	c.size.Store(e.volume.Size())
	c.allocation = c.metaBase && c.metaExport == name
	c.raw = nil
	if sc, ok := c.nc.(syscall.Conn); ok {
		if raw, err := sc.SyscallConn(); err == nil {
			c.raw, c.rawFunc, c.readFunc, c.waitFunc = raw, c.rawWrite, c.rawRead, c.rawAwait
		}
	}
	return nil
}

// close ends the session of an INFO.
func (c *conn) close() {
	c.sess.Close()
	c.sess = nil
	c.srv.detach(c)
}

// flags are the transmission flags.
func (c *conn) flags(l export.Limits) uint16 {
	f := uint16(tflagHasFlags | tflagFlush | tflagFUA | tflagTrim | tflagWriteZeroes | tflagMultiConn | tflagCache |
		tflagFastZero)
	if l.Rotational {
		f |= tflagRotational
	}
	if c.structured {
		f |= tflagDF
	}
	return f
}

// cleanText makes a description fit for the wire.
func cleanText(s string) string {
	s = strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", ""), "?")
	for len(s) > nameMax {
		s = strings.ToValidUTF8(s[:nameMax], "")
	}
	return s
}
