package nbd

import (
	"errors"
	"io"
	"time"

	"golang.org/x/sys/unix"
)

const (
	coalesceMax = 128 << 10 // bytes of small replies sent together
	coalesceOne = 64 << 10  // payloads from here on are sent from where they are
	roundsMax   = 16        // sends of one Kick before the writer goroutine takes over
)

// errFull says that the socket takes no more at the moment.
var errFull = errors.New("socket is full")

// push queues an encoded reply. Safe on any goroutine; Kick sends it.
func (c *conn) push(r *request) {
	c.mu.Lock()
	r.next = nil
	if c.tail == nil {
		c.head = r
	} else {
		c.tail.next = r
	}
	c.tail = r
	c.mu.Unlock()
}

// Kick sends the queued replies unless somebody is doing so already, who then takes them too. It does not wait
// for the client.
func (c *conn) Kick() {
	c.mu.Lock()
	if c.sending || c.head == nil {
		c.mu.Unlock()
		return
	}
	c.sending = true
	c.mu.Unlock()
	if c.raw == nil || !c.send(false) {
		c.handover <- struct{}{} // never blocks: only who is sending hands over
	}
}

// writer sends for those who must not wait. It ends when handover is closed.
func (c *conn) writer() {
	for range c.handover {
		c.send(true)
	}
}

// send sends until nothing is queued, and returns true; only one goroutine at a time is in it (sending). Unless it may
// wait it returns false when the socket is full or when it has gone on for long; sending stays set then.
func (c *conn) send(wait bool) bool {
	for rounds := 0; ; {
		for len(c.out)-c.outSent+len(c.big) > 0 {
			if !wait && rounds == roundsMax {
				return false
			}
			rounds++
			n, err := c.write(wait)
			if errors.Is(err, errFull) {
				return false
			}
			if err != nil {
				c.fail(err)
				c.outSent, c.big = len(c.out), nil
				break
			}
			k := min(n, len(c.out)-c.outSent)
			c.outSent += k
			c.big = c.big[n-k:]
		}
		c.out, c.outSent = c.out[:0], 0
		if !c.collect(wait) {
			return true
		}
	}
}

// collect fills out and big from the reply list. It returns false when the list is empty, and has given up
// sending then.
func (c *conn) collect(wait bool) bool {
	for c.take(wait) {
		for c.cur != nil || c.list != nil {
			if c.cur == nil {
				c.cur, c.list = c.list, c.list.next
				c.part = -1
			}
			if !c.fill() {
				return true
			}
		}
		if len(c.out) > 0 {
			return true
		}
	}
	return false
}

// take moves the queue to the sender's list if that is empty, and recycles what has been dealt with.
func (c *conn) take(wait bool) bool {
	if c.freeBytes > 0 {
		c.srv.budget.give(c.freeBytes)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sent != nil {
		c.sentTail.next = c.free
		c.free = c.sent
		c.sent, c.sentTail = nil, nil
		c.answered += c.sentN
		c.answeredBytes += c.freeBytes
		c.sentN, c.freeBytes = 0, 0
	}
	if c.list == nil && c.cur == nil {
		c.list, c.head, c.tail = c.head, nil, nil
	}
	more := c.list != nil || c.cur != nil
	if !more {
		c.sending = false
		if wait && c.writeUntil != (time.Time{}) {
			c.writeUntil = time.Time{}
			_ = c.base.SetWriteDeadline(time.Time{})
		}
	}
	if c.waiting {
		c.cond.Signal()
	}
	return more
}

// fill adds the current request, or as much of it as there is room for, to out and big. It returns false when the
// time has come to write.
func (c *conn) fill() bool {
	r := c.cur
	if c.dead.Load() {
		c.retire(r)
		return true
	}
	if c.part < 0 {
		need := r.headN + len(r.extra)
		if len(c.out) > 0 && len(c.out)+need > coalesceMax {
			return false
		}
		c.out = append(c.out, r.head[:r.headN]...)
		c.out = append(c.out, r.extra...)
		c.part = 0
	}
	if r.data {
		n := max(1, len(r.parts))
		for c.part < n {
			b := r.Buf
			if len(r.parts) > 0 {
				b = r.parts[c.part].Buf
			}
			data := b.B
			if len(data) < coalesceOne {
				if len(c.out)+len(data) > coalesceMax {
					return false
				}
				c.out = append(c.out, data...)
				c.part++
				continue
			}
			c.part++
			if c.raw == nil { // one write for header and data, or TLS makes two records
				k := min(len(data), max(0, coalesceOne-len(c.out)))
				c.out = append(c.out, data[:k]...)
				data = data[k:]
			}
			c.big = data
			return false // what remains of the request is dealt with once these bytes are gone
		}
	}
	c.retire(r)
	return true
}

// retire puts the current request, whose bytes have all been sent or copied, on the sender's free list.
func (c *conn) retire(r *request) {
	r.release()
	c.freeBytes += r.cost
	c.sentN++
	r.next = c.sent
	if c.sent == nil {
		c.sentTail = r
	}
	c.sent = r
	c.cur = nil
}

// write sends once from out and big and returns how much. Without wait it returns errFull instead of waiting.
func (c *conn) write(wait bool) (int, error) {
	if c.dead.Load() {
		return 0, io.ErrClosedPipe
	}
	if wait {
		c.extendWrite()
	}
	if c.raw == nil {
		if c.outSent < len(c.out) {
			return c.nc.Write(c.out[c.outSent:])
		}
		return c.nc.Write(c.big)
	}
	c.rawWait = wait
	if err := c.raw.Write(c.rawFunc); err != nil {
		return 0, err
	}
	if c.rawErr == unix.EAGAIN { //nolint:errorlint // raw errno of a system call
		return 0, errFull
	}
	return max(0, c.rawN), c.rawErr
}

// rawWrite is the system call of write, in the shape syscall.RawConn asks for.
func (c *conn) rawWrite(fd uintptr) bool {
	for {
		switch out := c.out[c.outSent:]; {
		case len(c.big) == 0:
			c.rawN, c.rawErr = sockWrite(fd, out)
		case len(out) == 0:
			c.rawN, c.rawErr = sockWrite(fd, c.big)
		default:
			c.rawN, c.rawErr = sockWritev(fd, &c.iov, out, c.big)
		}
		if c.rawErr != unix.EINTR { //nolint:errorlint // raw errno of a system call
			return c.rawErr != unix.EAGAIN || !c.rawWait //nolint:errorlint // raw errno of a system call
		}
	}
}

// extendWrite gives a client that has just taken something another SendTimeout.
func (c *conn) extendWrite() {
	if c.srv.cfg.SendTimeout < 0 {
		return
	}
	now := time.Now()
	if c.writeUntil.Sub(now) < c.srv.cfg.SendTimeout*3/4 {
		c.writeUntil = now.Add(c.srv.cfg.SendTimeout)
		_ = c.base.SetWriteDeadline(c.writeUntil)
	}
}

// fail gives the connection up: replies are dropped from now on, and the reader wakes.
func (c *conn) fail(err error) {
	if !c.dead.Swap(true) {
		c.log.Debug("nbd connection lost", "err", err)
		_ = c.base.Close()
	}
}
