package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hawser-ha/hawser/agent"
	"github.com/hawser-ha/hawser/replicator/control"
)

const barWidth = 30 // characters

// Colors of a terminal.
const (
	green  = "\x1b[32m"
	yellow = "\x1b[33m"
	red    = "\x1b[31m"
	bold   = "\x1b[1m"
	plain  = "\x1b[0m"
)

// useColor: only on a terminal, and not if NO_COLOR is set.
func useColor(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && isTerminal(f) && os.Getenv("NO_COLOR") == ""
}

// printer prints status for people.
type printer struct {
	w     io.Writer
	color bool
}

func (p printer) paint(color, text string) string {
	if !p.color || color == "" {
		return text
	}
	return color + text + plain
}

// state paints a state by how well it is.
func (p printer) state(s string) string {
	switch s {
	case "UpToDate", "Connected", "Primary", "Established":
		return p.paint(green, s)
	case "Inconsistent", "Failed", "Diskless", "StandAlone", "ProtocolError", "Outdated":
		return p.paint(red, s)
	case "Secondary", "Off":
		return s
	}
	return p.paint(yellow, s)
}

func (p printer) node(st *agent.NodeStatus) {
	for _, problem := range st.Problems {
		fmt.Fprintf(p.w, "%s %s\n", p.paint(red, "refused:"), problem)
	}
	for i := range st.Resources {
		if i > 0 {
			fmt.Fprintln(p.w)
		}
		p.resource(&st.Resources[i])
	}
	if len(st.Resources) == 0 {
		fmt.Fprintf(p.w, "no resources on node %s\n", st.Node)
	}
	if st.Cluster != nil {
		fmt.Fprintln(p.w)
		p.cluster(st.Cluster)
	}
}

func (p printer) resource(r *agent.ResourceStatus) {
	s := r.Status
	if s == nil {
		fmt.Fprintf(p.w, "%s %s", p.paint(bold, r.Name), p.paint(yellow, r.State))
		if r.State == agent.StateWitness {
			fmt.Fprintf(p.w, " (data on %s)", strings.Join(r.Nodes, ", "))
		}
		fmt.Fprintln(p.w)
		p.message(r)
		return
	}
	fmt.Fprintf(p.w, "%s node:%s role:%s", p.paint(bold, r.Name), s.Node, p.state(s.Role))
	if len(s.Suspended) > 0 {
		fmt.Fprintf(p.w, " %s", p.paint(red, "suspended:"+strings.Join(s.Suspended, ",")))
	}
	if len(s.NBD) > 0 {
		fmt.Fprintf(p.w, " nbd:%s", strings.Join(s.NBD, ","))
	}
	fmt.Fprintln(p.w)
	p.message(r)
	for i := range s.Volumes {
		p.volume(&s.Volumes[i])
	}
	for i := range s.Peers {
		p.peer(&s.Peers[i])
	}
}

func (p printer) message(r *agent.ResourceStatus) {
	if r.Message != "" {
		fmt.Fprintf(p.w, "  %s %s\n", p.paint(yellow, "note:"), r.Message)
	}
	for _, f := range r.Fenced {
		fmt.Fprintf(p.w, "  %s %s may not be promoted, says %s since %s: %s (constraint %s)\n", p.paint(yellow, "fenced:"), f.Banned, f.Owner,
			f.Since.Local().Format(time.DateTime), f.Reason, f.ID)
	}
}

func (p printer) volume(v *control.VolumeStatus) {
	disk := p.state(v.DiskState)
	if v.Client {
		disk = v.DiskState + " (on purpose)"
	}
	fmt.Fprintf(p.w, "  volume:%d disk:%s size:%s", v.Number, disk, bytesText(v.Size))
	if v.Device != "" {
		fmt.Fprintf(p.w, " device:%s", v.Device)
	}
	if n := len(v.Front); n > 0 {
		fmt.Fprintf(p.w, " open:%d", n)
	}
	if v.Undo > 0 {
		fmt.Fprintf(p.w, " undo-logs:%d", v.Undo)
	}
	fmt.Fprintln(p.w)
	if v.LastError != "" {
		fmt.Fprintf(p.w, "    %s %s\n", p.paint(red, "error:"), v.LastError)
	}
}

func (p printer) peer(c *control.PeerStatus) {
	fmt.Fprintf(p.w, "  %s", c.Name)
	if c.Connection != "Connected" {
		fmt.Fprintf(p.w, " connection:%s\n", p.state(c.Connection))
		if c.LastError != "" {
			fmt.Fprintf(p.w, "    %s %s\n", p.paint(yellow, "why:"), c.LastError)
		}
	} else {
		fmt.Fprintf(p.w, " role:%s protocol:%s", p.state(c.Role), c.Protocol)
		if c.Congested {
			fmt.Fprintf(p.w, " %s", p.paint(yellow, "congested"))
		}
		fmt.Fprintln(p.w)
	}
	for i := range c.Volumes {
		p.peerVolume(c, &c.Volumes[i])
	}
}

func (p printer) peerVolume(c *control.PeerStatus, v *control.PeerVolumeStatus) {
	if c.Connection != "Connected" {
		if v.OutOfSync > 0 {
			fmt.Fprintf(p.w, "    volume:%d out-of-sync:%s\n", v.Number, bytesText(v.OutOfSync))
		}
		return
	}
	fmt.Fprintf(p.w, "    volume:%d replication:%s peer-disk:%s", v.Number, p.state(v.Replication), p.state(v.DiskState))
	if v.OutOfSync > 0 {
		fmt.Fprintf(p.w, " out-of-sync:%s", bytesText(v.OutOfSync))
	}
	if len(v.Paused) > 0 {
		fmt.Fprintf(p.w, " %s", p.paint(yellow, "paused-by:"+strings.Join(v.Paused, ",")))
	}
	fmt.Fprintln(p.w)
	if v.Sync != nil {
		fmt.Fprintf(p.w, "      %s %s\n", bar(v.Sync.Percent), progressText(v.Sync))
	}
}

// bar draws percent.
func bar(percent float64) string {
	n := min(max(int(percent*barWidth/100), 0), barWidth)
	head := ""
	if n < barWidth {
		head = ">"
	}
	return "[" + strings.Repeat("=", n) + head + strings.Repeat(" ", barWidth-n-len(head)) + "]"
}

// progressText is how far it is, how fast, and how long it will take.
func progressText(s *control.Progress) string {
	text := fmt.Sprintf("%s %.1f%% of %s", s.Kind, s.Percent, bytesText(s.Total))
	if s.Mismatches > 0 {
		text += fmt.Sprintf(", %s differ", bytesText(s.Mismatches))
	}
	switch {
	case !s.Ended.IsZero():
		took := s.Ended.Sub(s.Started)
		return text + fmt.Sprintf(" in %s", took.Round(time.Millisecond))
	case s.Stalled:
		return text + ", stalled"
	}
	text += fmt.Sprintf(", %s/s", bytesText(s.Rate))
	if s.ETA >= 0 {
		text += ", " + (time.Duration(math.Ceil(s.ETA)) * time.Second).String() + " left"
	}
	return text
}

// bytesText writes bytes with a unit of 1024, three digits.
func bytesText(n int64) string {
	if n < 1024 {
		return fmt.Sprintf("%dB", n)
	}
	f, unit := float64(n)/1024, 0
	for f >= 1023.95 && unit < 4 {
		f /= 1024
		unit++
	}
	return strconv.FormatFloat(f, 'f', 1, 64) + []string{"KiB", "MiB", "GiB", "TiB", "PiB"}[unit]
}

var units = map[string]int64{"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40, "s": 512}

// parseBytes reads a size: a number, and K, M, G, T (powers of 1024) or s (sectors of 512 bytes).
func parseBytes(text string) (int64, error) {
	number := strings.TrimRight(strings.ToLower(text), "bikmgts")
	suffix := strings.TrimSuffix(strings.TrimSuffix(strings.ToLower(text)[len(number):], "b"), "i")
	unit, ok := units[suffix]
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || !ok || n < 0 || n > math.MaxInt64/unit {
		return 0, errors.New("not a size such as 4096, 512K or 10G")
	}
	return n * unit, nil
}

// table prints rows in columns; the first row is the heading.
func table(w io.Writer, rows [][]string) {
	width := make([]int, len(rows[0]))
	for _, r := range rows {
		for i, c := range r {
			width[i] = max(width[i], len(c))
		}
	}
	for _, r := range rows {
		line := ""
		for i, c := range r {
			line += fmt.Sprintf("%-*s  ", width[i], c)
		}
		fmt.Fprintln(w, strings.TrimRight(line, " "))
	}
}

// wait follows a resource until done says so, with a progress line of its resyncs on a terminal. limit 0 is for ever.
func wait(o *on, limit time.Duration, done func(*control.Status) (bool, string, error)) error {
	ctx, cancel := context.WithCancel(o.ctx)
	if limit > 0 {
		ctx, cancel = context.WithTimeout(o.ctx, limit)
	}
	changed := make(chan struct{}, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		follow(ctx, o.c, changed)
	}()
	defer func() { cancel(); <-ended }()
	f, ok := o.cmd.ErrOrStderr().(*os.File)
	live := ok && isTerminal(f)
	drawn := false
	clear := func() {
		if drawn {
			fmt.Fprint(o.cmd.ErrOrStderr(), "\r\x1b[K")
		}
	}
	defer clear()
	for {
		st, err := o.status()
		if err != nil && !errors.Is(err, control.Unknown) { // it may be starting again
			return err
		}
		why := "its replicator does not answer"
		if err == nil {
			over, text, err := done(st)
			if over || err != nil {
				return err
			}
			why = text
			if live {
				clear()
				drawn = true
				fmt.Fprint(o.cmd.ErrOrStderr(), waitLine(o.target, st, why))
			}
		}
		select {
		case <-changed:
		case <-time.After(500 * time.Millisecond):
		case <-ctx.Done():
			if o.ctx.Err() != nil {
				return control.Errorf(control.Unknown, "interrupted: %s", why).On(o.res, control.All, "")
			}
			return control.Errorf(control.Failed, "still not after %s: %s", limit, why).On(o.res, control.All, "").WithHint("hawser status " + o.res)
		}
	}
}

func waitLine(t target, st *control.Status, why string) string {
	for _, p := range st.Peers {
		i := slices.IndexFunc(p.Volumes, func(v control.PeerVolumeStatus) bool {
			return v.Sync != nil && (t.vol == control.All || v.Number == t.vol)
		})
		if i >= 0 {
			return fmt.Sprintf("%s %s %s", t, bar(p.Volumes[i].Sync.Percent), progressText(p.Volumes[i].Sync))
		}
	}
	return fmt.Sprintf("%s: %s", t, why)
}
