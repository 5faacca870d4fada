package service

import (
	"context"
	"encoding/json"
	"syscall"
	"time"
)

// encode is the record, with the mutex held.
func (c *chain) encode() []byte {
	data, err := json.Marshal(record{Boot: c.r.g.boot, Stack: c.stack, Past: c.past})
	if err != nil {
		panic("service: encode record: " + err.Error()) // plain values
	}
	return data
}

// adopt finds out what runs: what the record names, and without a record of this boot whatever of the definition a
// probe finds. A program that an agent before us began is waited for until its deadline, then killed.
func (c *chain) adopt(ctx context.Context) error {
	rec, err := readRecord(c.file)
	if err != nil {
		c.host.log.Error("record of services not read, asking each service", "err", err)
	}
	c.r.g.mu.Lock()
	maintenance := c.r.maintenance
	defs := c.defs
	c.r.g.mu.Unlock()
	var stack []*instance
	pasts := map[string]*past{}
	if rec != nil {
		stack = rec.Stack
		for name, p := range rec.Past {
			if p != nil {
				pasts[name] = p
			}
		}
	} else if maintenance {
		c.r.g.mu.Lock()
		defer c.r.g.mu.Unlock()
		c.blind = true // run calls again when maintenance ends
		return nil
	} else {
		for i := range defs {
			in := &instance{Spec: defs[i], State: Starting, Since: time.Now()}
			a := c.r.g.drivers(c.host, defs[i].Kind).monitor(ctx, &defs[i], c.handle(ctx, in, "monitor", defs[i].MonitorTimeout), true)
			switch {
			case a.err != nil:
				return a.err
			case a.is == running || a.is == degraded:
				in.State, in.Ran, in.Reason = Running, true, "it was found running"
				stack = append(stack, in)
			case a.is == broken:
				in.State, in.Failed, in.Reason = Failed, true, a.reason
				stack = append(stack, in)
			case a.is == unclear:
				in.State, in.Reason = Unknown, a.reason
				stack = append(stack, in)
			}
		}
	}
	for i := 0; i < len(stack); {
		keep, err := c.take(ctx, stack[i], maintenance, pasts)
		if err != nil {
			return err
		}
		if keep {
			i++
			continue
		}
		stack = append(stack[:i:i], stack[i+1:]...)
	}
	c.update(func() {
		c.stack, c.past, c.blind = stack, pasts, false
		for name, p := range pasts {
			if p.GaveUp != "" {
				c.asks, c.why = max2(c.asks, AskMove), name+": "+p.Reason
			}
		}
	})
	return nil
}

// take settles what was under way when the agent before us ended, and says whether the service may run.
func (c *chain) take(ctx context.Context, in *instance, maintenance bool, pasts map[string]*past) (bool, error) {
	if op := in.Op; op != nil {
		if !op.Process.end(ctx, time.Until(op.Deadline)) {
			if ctx.Err() != nil {
				return false, leftOr(ctx)
			}
			op.Process.signal(syscall.SIGKILL)
			op.Process.end(ctx, killWait)
		}
		in.Op = nil
	}
	if maintenance || in.Failed {
		return true, nil // it is asked when maintenance ends, or stopped
	}
	spec := in.Spec
	d := c.r.g.drivers(c.host, spec.Kind)
	a := d.monitor(ctx, &spec, c.handle(ctx, in, "monitor", spec.MonitorTimeout), true)
	if a.err != nil {
		return false, a.err
	}
	interrupted := in.State == Starting && !in.Ran || in.State == Stopping || in.State == StopFailed
	switch {
	case a.is == running || a.is == degraded:
		in.Ran, in.checked = true, time.Now()
		in.State = Running
		if a.is == degraded {
			in.State = Degraded
		}
		in.due = time.Now().Add(spec.Monitor)
		return true, nil
	case a.is == notRunning && interrupted:
		return false, nil
	case a.is == unclear:
		in.State, in.Reason = Unknown, a.reason
		return true, nil
	case a.is == notRunning:
		a.reason = "it ended while no agent watched"
	}
	p := pasts[spec.Name]
	if p == nil {
		p = &past{}
		pasts[spec.Name] = p
	}
	failure(p, &spec, a, time.Now(), c.r.g.o.Backoff)
	in.State, in.Reason, in.Failed, in.Since = Failed, a.reason, true, time.Now()
	return true, nil
}
