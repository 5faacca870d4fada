package etcd_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/hawser-ha/hawser/agent/config"
	"github.com/hawser-ha/hawser/agent/coord"
	"github.com/hawser-ha/hawser/agent/etcd"
	"github.com/hawser-ha/hawser/agent/etcdmember"
	"github.com/hawser-ha/hawser/agent/etcdmember/membertest"
)

// TestAccess: etcd wants name and password; tokens end, and the password is changed, while a lease is held.
func TestAccess(t *testing.T) {
	file := filepath.Join(t.TempDir(), "password")
	password := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	password("one")
	c := membertest.Start(t, 1, nil)
	access, err := etcd.FromNode(config.NodeConfig{Etcd: config.Etcd{Endpoints: c.Endpoints(), User: "hawser", PasswordFile: file}}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	ctx := within(t)
	root, err := clientv3.New(clientv3.Config{Endpoints: c.Endpoints(), Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	do := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	_, err = root.UserAdd(ctx, "root", "rootpw")
	do("root", err)
	_, err = root.UserGrantRole(ctx, "root", "root")
	do("root", err)
	_, err = root.RoleAdd(ctx, "hawser")
	do("role", err)
	_, err = root.RoleGrantPermission(ctx, "hawser", "/hawser/", "/hawser0", clientv3.PermissionType(clientv3.PermReadWrite))
	do("role", err)
	_, err = root.UserAdd(ctx, "hawser", "one")
	do("user", err)
	_, err = root.UserGrantRole(ctx, "hawser", "hawser")
	do("user", err)
	_, err = root.AuthEnable(ctx)
	do("auth", err)

	a := startAgent(t, "n1", c.Client(func(cfg *etcd.Config) { cfg.User, cfg.Password = access.User, access.Password }))
	id := a.Lease()
	works := func(what string) {
		t.Helper()
		since := coord.BootTime()
		eventually(t, what, func() error {
			st := a.State()
			if st.Lease != id || st.Until <= coord.BootTime() {
				t.Fatalf("%s: the lease is lost: %+v", what, st)
			}
			if st.Renewed <= since {
				return fmt.Errorf("not renewed: %w", st.Err)
			}
			return nil
		})
		if err := a.PutStatus(ctx, "r0", []byte(fmt.Sprintf("%q", what))); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		a.see(t, what, func(v *coord.View) bool {
			s := v.Resource("r0").Status["n1"]
			return s != nil && strings.Contains(string(s.Data), what)
		})
	}
	works("at first")
	if _, err := c.Client(nil).Txn(ctx, coord.Txn{Then: []coord.Op{{Key: "/hawser/x"}}}); !errors.Is(err, coord.ErrRefused) {
		t.Errorf("without a name: %v", err)
	}
	if _, err := a.client.Txn(ctx, coord.Txn{Then: []coord.Op{{Key: "/elsewhere"}}}); !errors.Is(err, coord.ErrRefused) {
		t.Errorf("what the role does not allow: %v", err)
	}
	c.StopMember(0) // it forgets the tokens it gave
	c.StartMember(0)
	c.Wait(0)
	works("a new token")
	password("two") // first the file, then etcd
	works("the file is ahead")
	admin, err := clientv3.New(clientv3.Config{Endpoints: c.Endpoints(), Username: "root", Password: "rootpw", Logger: zap.NewNop()})
	do("root", err)
	defer admin.Close()
	_, err = admin.UserChangePassword(ctx, "hawser", "two")
	do("password", err)
	works("a new password")
	wrong := c.Client(func(cfg *etcd.Config) {
		cfg.User, cfg.Password = "hawser", func() (string, error) { return "wrong", nil }
	})
	if _, err := wrong.Head(ctx); !errors.Is(err, coord.ErrRefused) {
		t.Errorf("a wrong password: %v", err)
	}
}

// authority signs certificates for 127.0.0.1.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	a.cert, a.key = a.sign("ca", nil, nil)
	return a
}

func (a *authority) sign(name string, parent *x509.Certificate, parentKey *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: parent == nil, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	if parent == nil {
		parent, parentKey = tmpl, key
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, &key.PublicKey, parentKey)
	if err != nil {
		a.t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{name + ".pem": {Type: "CERTIFICATE", Bytes: der}, name + ".key": {Type: "EC PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(filepath.Join(a.dir, file), pem.EncodeToMemory(block), 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert, key
}

// files gives the files of a certificate of that name.
func (a *authority) files(name string) config.TLSFiles {
	a.t.Helper()
	a.sign(name, a.cert, a.key)
	p := func(file string) string { return filepath.Join(a.dir, file) }
	return config.TLSFiles{CA: p("ca.pem"), Cert: p(name + ".pem"), Key: p(name + ".key")}
}

func TestTLS(t *testing.T) {
	ours, theirs := newAuthority(t), newAuthority(t)
	server := ours.files("server")
	secure := func(cfg *etcdmember.Config) {
		cfg.ClientTLS, cfg.PeerTLS = server, server
		cfg.Self.ClientURL = strings.Replace(cfg.Self.ClientURL, "http:", "https:", 1)
		cfg.Self.PeerURL = strings.Replace(cfg.Self.PeerURL, "http:", "https:", 1)
	}
	c := membertest.Start(t, 1, secure)
	good := ours.files("client")
	client := func(files config.TLSFiles, endpoint string) *etcd.Client {
		t.Helper()
		conf, err := etcd.LoadTLS(files)
		if err != nil {
			t.Fatal(err)
		}
		return c.Client(func(cfg *etcd.Config) {
			cfg.TLS, cfg.Endpoints, cfg.RPCTimeout = conf, []string{endpoint}, 500*time.Millisecond
		})
	}
	url := c.Endpoints()[0]
	ok := client(good, url)
	eventually(t, "the right certificate", func() error { _, err := ok.Head(within(t)); return err })
	foreign := theirs.files("client")
	for name, cl := range map[string]*etcd.Client{
		"a member of another CA":   client(foreign, url),
		"a client of another CA":   client(config.TLSFiles{CA: good.CA, Cert: foreign.Cert, Key: foreign.Key}, url),
		"a client without a name":  client(config.TLSFiles{CA: good.CA}, url),
		"no TLS where there is":    client(config.TLSFiles{}, strings.Replace(url, "https:", "http:", 1)),
		"TLS with the system's CA": client(config.TLSFiles{}, url),
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		if _, err := cl.Head(ctx); !errors.Is(err, coord.ErrUnavailable) {
			t.Errorf("%s: read: %v", name, err)
		}
		if _, err := cl.KeepAlive(ctx, 1); !errors.Is(err, coord.ErrUnavailable) {
			t.Errorf("%s: renewal: %v", name, err)
		}
		if _, err := cl.Txn(ctx, coord.Txn{Then: []coord.Op{{Key: "k"}}}); err == nil {
			t.Errorf("%s: a transaction was done", name)
		}
		cancel()
	}
	if _, err := etcd.LoadTLS(config.TLSFiles{CA: good.Key}); err == nil {
		t.Error("a key was taken for a CA")
	}
	if _, err := etcd.LoadTLS(config.TLSFiles{CA: good.CA, Cert: good.Cert, Key: foreign.Key}); err == nil {
		t.Error("a key of another certificate")
	}
}
