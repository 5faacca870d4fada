package host

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hawser-ha/hawser/agent/pacemaker"
	"github.com/hawser-ha/hawser/replicator/control"
)

// fakeCluster answers as cibadmin and crm_mon do: two nodes, each with a copy of the configuration.
type fakeCluster struct {
	mu      sync.Mutex
	schema  string
	cib     map[string]string // constraint by id, of this side
	peer    string            // online, unclean, offline
	cut     bool              // the other side's copy gets nothing any more
	remote  map[string]string
	quorum  bool
	onWrite func(f *fakeCluster)
	creates int
}

var idOf = regexp.MustCompile(`^<rsc_location id="([^"]+)"`)

func (f *fakeCluster) render(constraints map[string]string) string {
	quorum := "0"
	if f.quorum {
		quorum = "1"
	}
	var all []string
	for _, x := range constraints {
		all = append(all, x)
	}
	slices.Sort(all)
	return fmt.Sprintf(`<cib validate-with="%s" have-quorum="%s"><configuration><nodes><node id="1" uname="n1"/><node id="2" uname="n2"/></nodes>
		<resources><clone id="c"><primitive id="r0"><instance_attributes id="i"><nvpair id="p" name="drbd_resource" value="r0"/></instance_attributes></primitive>
		<meta_attributes id="m"><nvpair id="q" name="promotable" value="true"/></meta_attributes></clone></resources>
		<constraints>%s</constraints></configuration></cib>`, f.schema, quorum, strings.Join(all, ""))
}

func (f *fakeCluster) run(_ context.Context, name string, args ...string) ([]byte, int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fail := func(why string) ([]byte, int, error) { return nil, 1, fmt.Errorf("%s: exit code 1: %s", name, why) }
	xml := args[len(args)-1]
	switch {
	case name == "crm_mon":
		online, unclean := f.peer == "online", f.peer == "unclean"
		return []byte(fmt.Sprintf(`<crm_mon><nodes><node name="n1" online="true" unclean="false" pending="false"/>
			<node name="n2" online="%v" unclean="%v" pending="false"/></nodes><resources><clone id="c"><resource id="r0" role="Promoted"><node name="n1"/></resource></clone></resources></crm_mon>`, online, unclean)), 0, nil
	case slices.Contains(args, "--node"):
		if f.cut || f.peer != "online" {
			return fail("timed out")
		}
		return []byte(f.render(f.remote)), 0, nil
	case slices.Contains(args, "--query"):
		return []byte(f.render(f.cib)), 0, nil
	case slices.Contains(args, "--create"):
		id := idOf.FindStringSubmatch(xml)[1]
		if _, ok := f.cib[id]; ok {
			return fail("exists")
		}
		if strings.Contains(xml, "Promoted") && f.schema < "pacemaker-3.7" {
			return fail("schema violation")
		}
		f.creates++
		f.cib[id] = xml
		if !f.cut {
			f.remote[id] = xml
		}
		if f.onWrite != nil {
			f.onWrite(f)
		}
		return nil, 0, nil
	case slices.Contains(args, "--delete"):
		id := idOf.FindStringSubmatch(xml)[1]
		delete(f.cib, id)
		delete(f.remote, id)
		return nil, 0, nil
	}
	return fail("what is " + strings.Join(args, " "))
}

func newCluster() *fakeCluster {
	return &fakeCluster{schema: "pacemaker-3.9", cib: map[string]string{}, remote: map[string]string{}, peer: "online", quorum: true}
}

func TestFencePeer(t *testing.T) {
	theirs := pacemaker.NewBan("r0", "c", "n2", "n1")
	ours := pacemaker.NewBan("r0", "c", "n1", "n2")
	later := func(d time.Duration, f *fakeCluster, change func()) {
		time.AfterFunc(d, func() { f.mu.Lock(); defer f.mu.Unlock(); change() })
	}
	for _, c := range []struct {
		name    string
		set     func(f *fakeCluster)
		o       FenceOptions
		code    int
		why     string
		creates int
	}{
		{"only the replication network is cut", func(*fakeCluster) {}, FenceOptions{}, pacemaker.PeerOutdated, "knows that it may not", 1},
		{"an older Pacemaker", func(f *fakeCluster) { f.schema = "pacemaker-2.0" }, FenceOptions{}, pacemaker.PeerOutdated, "", 1},
		{"the constraint is there from before", func(f *fakeCluster) { f.cib[ours.ID], f.remote[ours.ID] = ours.XML(true), ours.XML(true) }, FenceOptions{}, pacemaker.PeerOutdated, "", 0},
		{"both networks are cut, and nobody has noticed yet", func(f *fakeCluster) { f.cut = true }, FenceOptions{Timeout: time.Second}, pacemaker.PeerUnknown, "does not confirm", 1},
		{"both are cut, and Pacemaker fences the peer", func(f *fakeCluster) {
			f.cut = true
			f.onWrite = func(f *fakeCluster) {
				f.peer = "unclean"
				later(800*time.Millisecond, f, func() { f.peer = "offline" })
			}
		}, FenceOptions{}, pacemaker.PeerStonithed, "fenced", 1},
		{"nobody can fence it", func(f *fakeCluster) { f.peer = "unclean" }, FenceOptions{Timeout: time.Second}, pacemaker.PeerUnknown, "not fenced yet", 1},
		{"it has left", func(f *fakeCluster) { f.peer = "offline" }, FenceOptions{}, pacemaker.PeerUnreachable, "not in the cluster", 1},
		{"no quorum", func(f *fakeCluster) { f.quorum = false }, FenceOptions{Timeout: time.Second}, pacemaker.PeerUnknown, "quorum", 0},
		{"quorum comes back", func(f *fakeCluster) { f.quorum = false; later(500*time.Millisecond, f, func() { f.quorum = true }) }, FenceOptions{}, pacemaker.PeerOutdated, "", 1},
		{"the peer was faster", func(f *fakeCluster) { f.cib[theirs.ID] = theirs.XML(true) }, FenceOptions{}, pacemaker.PeerPrimary, "n1 may not be promoted", 0},
		{"no such clone", func(*fakeCluster) {}, FenceOptions{Resource: "r1"}, pacemaker.PeerUnknown, "no promotable clone", 0},
		{"no such node", func(*fakeCluster) {}, FenceOptions{Peer: "other"}, pacemaker.PeerUnknown, "its nodes are n1, n2", 0},
		{"data that is not whole", func(f *fakeCluster) { f.peer = "unclean" }, FenceOptions{Inconsistent: true}, pacemaker.PeerInconsistent, "", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newCluster()
			c.set(f)
			h := newHost(t)
			h.Run = f.run
			o := c.o
			if o.Resource == "" {
				o.Resource = "r0"
			}
			if o.Peer == "" {
				o.Peer = "n2"
			}
			if o.Timeout == 0 {
				o.Timeout = 20 * time.Second
			}
			code, why := h.FencePeer(t.Context(), o)
			if code != c.code || !strings.Contains(why, c.why) || f.creates != c.creates {
				t.Errorf("%d %q after %d writes, want %d %q after %d", code, why, f.creates, c.code, c.why, c.creates)
			}
			if recs := h.Records("r0"); f.creates > 0 && (len(recs) != 1 || recs[0].Owner != "n1" || recs[0].Banned != "n2" || recs[0].Reason == "") {
				t.Errorf("records %+v", recs)
			}
		})
	}
}

func TestUnfence(t *testing.T) {
	ours := pacemaker.NewBan("r0", "c", "n1", "n2")
	foreign := `<rsc_location id="cli-ban-r0" rsc="c" node="n2" score="-INFINITY"/>`
	peer := func(disk, replication string) *control.Status {
		return &control.Status{Resource: "r0", Role: "Primary", Volumes: []control.VolumeStatus{{DiskState: "UpToDate"}},
			Peers: []control.PeerStatus{{Name: "n2", Connection: "Connected", Volumes: []control.PeerVolumeStatus{{DiskState: disk, Replication: replication}}}}}
	}
	h := newHost(t)
	f := newCluster()
	h.Run = f.run
	r := h.Resource("r0")
	defer r.Close()
	if code, why := h.FencePeer(t.Context(), FenceOptions{Resource: "r0", Peer: "n2", Timeout: 10 * time.Second}); code != pacemaker.PeerOutdated {
		t.Fatal(code, why)
	}
	f.cib["cli-ban-r0"] = foreign
	// Nothing runs here: nobody can tell.
	if removed, left, err := h.Unfence(t.Context(), "r0", "", 0); err != nil || len(removed) != 0 || len(left) != 1 {
		t.Errorf("%v %v %v", removed, left, err)
	}
	spawn(t, r.sock, "")
	say := func(st *control.Status) {
		data, err := json.Marshal(st)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(r.sock+".status.new", data, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(r.sock+".status.new", r.sock+".status"); err != nil {
			t.Fatal(err)
		}
	}
	say(peer("Inconsistent", "SyncSource"))
	if removed, left, err := h.Unfence(t.Context(), "r0", "n2", 0); err != nil || len(removed) != 0 || len(left) != 1 || !strings.Contains(left[0], "SyncSource") {
		t.Errorf("during the resync: %v %v %v", removed, left, err)
	}
	say(peer("UpToDate", "Established"))
	if removed, left, err := h.Unfence(t.Context(), "r0", "n3", 0); err != nil || len(removed) != 0 || len(left) != 0 {
		t.Errorf("another peer: %v %v %v", removed, left, err)
	}
	if removed, left, err := h.Unfence(t.Context(), "r0", "", 0); err != nil || !slices.Equal(removed, []string{ours.ID}) || len(left) != 0 {
		t.Errorf("after the resync: %v %v %v", removed, left, err)
	}
	if _, ok := f.cib["cli-ban-r0"]; !ok || len(f.cib) != 1 {
		t.Errorf("constraints are %v", f.cib)
	}
	if recs := h.Records("r0"); len(recs) != 0 {
		t.Errorf("records are left: %+v", recs)
	}
	// One that somebody else removed leaves no record either.
	if code, why := h.FencePeer(t.Context(), FenceOptions{Resource: "r0", Peer: "n2", Timeout: 10 * time.Second}); code != pacemaker.PeerOutdated {
		t.Fatal(code, why)
	}
	delete(f.cib, ours.ID)
	if _, _, err := h.Unfence(t.Context(), "r0", "", 0); err != nil || len(h.Records("r0")) != 0 {
		t.Errorf("%v, records %+v", err, h.Records("r0"))
	}
}
