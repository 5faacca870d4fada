package etcdmember

import (
	"errors"
	"strings"
	"testing"

	"github.com/hawser-ha/hawser/agent/etcd"
)

func TestHowAMemberStarts(t *testing.T) {
	cfg := Config{Self: Place{"n1", "http://a:1", "http://a:2"}, Others: []Place{{"n2", "http://b:1", "http://b:2"}}, DataDir: "/d"}
	other := etcd.Member{ID: 2, Name: "n2", PeerURLs: []string{"http://b:1"}, ClientURLs: []string{"http://b:2"}}
	listed := etcd.Member{ID: 1, Name: "n1", PeerURLs: []string{"http://a:1"}}
	started := listed
	started.ClientURLs = []string{"http://a:2"}
	added := etcd.Member{ID: 9, PeerURLs: []string{"http://a:1"}}
	const both = "n1=http://a:1,n2=http://b:1"
	for name, c := range map[string]struct {
		has     bool
		mark    uint64
		formed  bool
		members []etcd.Member
		want    plan
		err     error
	}{
		"nobody answers, no data":                         {want: plan{state: "new", initial: both}},
		"nobody answers, no data, but there was a member": {formed: true, err: ErrDataLost},
		"nobody answers, data":                            {has: true, mark: 1, formed: true, want: plan{state: "new", initial: both}},
		"the first start is under way":                    {members: []etcd.Member{listed, other}, want: plan{state: "new", initial: both}},
		"it was started, the data is gone":                {members: []etcd.Member{started, other}, err: ErrDataLost},
		"it was started, the data is there":               {has: true, mark: 1, members: []etcd.Member{started, other}, want: plan{state: "new", initial: both}},
		"it was added":                                    {members: []etcd.Member{added, other}, want: plan{state: "existing", initial: both, id: 9}},
		"it replaces one that lost its data":              {formed: true, members: []etcd.Member{added, other}, want: plan{state: "existing", initial: both, id: 9}},
		"it replaces one whose data is there":             {has: true, mark: 1, members: []etcd.Member{added, other}, want: plan{state: "existing", initial: both, id: 9, moveAside: true}},
		"it was added, and ended before all knew":         {has: true, mark: 9, members: []etcd.Member{added, other}, want: plan{state: "new", initial: both}},
		"nobody added it":                                 {members: []etcd.Member{other}, err: ErrNotMember},
		"it was removed":                                  {has: true, mark: 1, members: []etcd.Member{other}, want: plan{state: "new", initial: both}},
	} {
		got, err := choose(cfg, c.has, c.mark, c.formed, c.members)
		if got != c.want || !errors.Is(err, c.err) {
			t.Errorf("%s: %+v, %v; want %+v, %v", name, got, err, c.want, c.err)
		}
		if err != nil && !strings.Contains(err.Error(), "hawser etcd member") {
			t.Errorf("%s: it does not say what to do: %v", name, err)
		}
	}
}

func TestMarksOutliveTheProcess(t *testing.T) {
	dir := t.TempDir()
	if has, mark, err := look(dir); has || mark != 0 || err != nil {
		t.Error(has, mark, err)
	}
	if err := writeMark(dir, 0xabc); err != nil {
		t.Fatal(err)
	}
	if _, mark, err := look(dir); mark != 0xabc || err != nil {
		t.Error(mark, err)
	}
	if formed, err := wasFormed(dir, "c"); formed || err != nil {
		t.Error(formed, err)
	}
	if err := writeFormed(dir, "c"); err != nil {
		t.Fatal(err)
	}
	if formed, err := wasFormed(dir, "c"); !formed || err != nil {
		t.Error(formed, err)
	}
	if formed, err := wasFormed(dir, "another"); formed || err != nil {
		t.Error(formed, err)
	}
}
