package config

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

const threeNodes = `node: n2
cluster: prod
nodes:
  - {name: n1, address: 10.0.0.1}
  - {name: n2, address: "fd00::2"}
  - {name: w, address: witness.example, peer-url: "http://127.0.0.1:3380", client-url: "http://127.0.0.1:3379"}
  - {name: n4, no-etcd: true}
etcd: {embedded: true}
`

func TestClusterOfNodes(t *testing.T) {
	n, err := LoadNode(writeNode(t, threeNodes), nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"http://[fd00::2]:2379", "http://10.0.0.1:2379", "http://127.0.0.1:3379"}
	if got := n.EtcdEndpoints(); !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	w, ok := n.ClusterNode("w")
	if !ok || n.EtcdPeerURL(w) != "http://127.0.0.1:3380" || !n.Coordinated() || n.EtcdDataDir() != "/var/lib/hawser/etcd" {
		t.Errorf("%+v", w)
	}
	n.Etcd.PeerTLS = TLSFiles{CA: "/ca", Cert: "/c", Key: "/k"}
	n1, _ := n.ClusterNode("n1")
	if u := n.EtcdPeerURL(n1); u != "https://10.0.0.1:2380" {
		t.Error(u)
	}
}

func TestExternalEtcd(t *testing.T) {
	t.Setenv("HAWSER_ETCD_ENDPOINTS", "https://a:2379,https://b:2379")
	t.Setenv("HAWSER_LEASE_TTL", "30s")
	n, err := LoadNode(writeNode(t, "node: n1\n"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(n.EtcdEndpoints(), []string{"https://a:2379", "https://b:2379"}) || n.Lease.TTL != 30*time.Second || !n.Coordinated() {
		t.Errorf("%+v", n)
	}
}

func TestClusterComplaints(t *testing.T) {
	text := `node: n1
cluster: a b
nodes:
  - {name: n1, address: "10.0.0.1:2380"}
  - {name: n1, adress: 10.0.0.2}
`
	file := writeNode(t, text)
	_, err := LoadNode(file, nil)
	if err == nil {
		t.Fatal("accepted")
	}
	golden(t, "testdata/node-cluster-keys.golden", strings.ReplaceAll(err.Error(), file, "hawser.yaml")+"\n")
	file = writeNode(t, `node: n1
cluster: a b
nodes:
  - {name: n1, address: "10.0.0.1:2380"}
  - {name: n2}
  - {name: n2, address: 10.0.0.1, client-url: "10.0.0.1:2379"}
  - {name: n3, address: n}
  - {name: n4, address: n}
etcd:
  embedded: true
  endpoints: ["http://a:2379", "ftp://b"]
  user: x
  client-tls: {cert: /c}
  peer-tls: {ca: /ca}
  heartbeat: 1s
  quota-mib: 1
  client-port: 0
lease: {ttl: 2500ms, rpc-timeout: 1s}
`)
	_, err = LoadNode(file, nil)
	if err == nil {
		t.Fatal("accepted")
	}
	golden(t, "testdata/node-cluster-values.golden", strings.ReplaceAll(err.Error(), file, "hawser.yaml")+"\n")
}

func TestLeaseInequality(t *testing.T) {
	for name, c := range map[string]struct {
		l  Lease
		ok bool
	}{
		"default":                    {defaultLease(), true},
		"short":                      {Lease{3 * time.Second, 500 * time.Millisecond, 500 * time.Millisecond, 500 * time.Millisecond}, true},
		"just not two attempts":      {Lease{7 * time.Second, 2 * time.Second, 2 * time.Second, time.Second}, false},
		"just two attempts":          {Lease{8 * time.Second, 2 * time.Second, 2 * time.Second, time.Second}, true},
		"no margin":                  {Lease{10 * time.Second, 2 * time.Second, 2 * time.Second, 0}, false},
		"etcd counts in seconds":     {Lease{10500 * time.Millisecond, 2 * time.Second, 2 * time.Second, time.Second}, false},
		"etcd grants no shorter one": {Lease{time.Second, 100 * time.Millisecond, 100 * time.Millisecond, 100 * time.Millisecond}, false},
	} {
		n := DefaultNode()
		n.Node, n.Lease = "n1", c.l
		if err := n.Validate(); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}
