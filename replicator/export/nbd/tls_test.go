package nbd

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// authority makes certificates for a test.
type authority struct {
	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	n    int64
}

func newAuthority(t testing.TB) *authority {
	a := &authority{t: t}
	c := a.make("test authority", nil)
	a.cert, a.key = c.Leaf, c.PrivateKey.(*ecdsa.PrivateKey)
	return a
}

// make issues a certificate for host and 127.0.0.1; without an issuer it is an authority itself.
func (a *authority) make(host string, issuer *authority) tls.Certificate {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	a.n++
	template := &x509.Certificate{SerialNumber: big.NewInt(a.n), Subject: pkix.Name{CommonName: host},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, BasicConstraintsValid: true}
	parent, signer := template, key
	if issuer == nil {
		template.IsCA, template.KeyUsage = true, x509.KeyUsageCertSign
	} else {
		parent, signer = issuer.cert, issuer.key
		template.DNSNames, template.IPAddresses = []string{host}, []net.IP{net.IPv4(127, 0, 0, 1)}
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// config is for either side, and trusts only this authority.
func (a *authority) config(host string) *tls.Config {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return &tls.Config{Certificates: []tls.Certificate{a.make(host, a)}, RootCAs: pool, ClientCAs: pool,
		ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12, ServerName: "server"}
}

// folder writes certificates the way libnbd and nbdkit look for them.
func (a *authority) folder(client tls.Certificate) string {
	a.t.Helper()
	dir := a.t.TempDir()
	key, err := x509.MarshalPKCS8PrivateKey(client.PrivateKey)
	if err != nil {
		a.t.Fatal(err)
	}
	for name, b := range map[string]*pem.Block{
		"ca-cert.pem":     {Type: "CERTIFICATE", Bytes: a.cert.Raw},
		"client-cert.pem": {Type: "CERTIFICATE", Bytes: client.Certificate[0]},
		"client-key.pem":  {Type: "PRIVATE KEY", Bytes: key},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(b), 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
	return dir
}

var testTLS = struct{ server, client *tls.Config }{}

// tlsPair is connect to a server that wants TLS.
func tlsPair(t testing.TB, s *Server) net.Conn {
	a := newAuthority(t)
	testTLS.server, testTLS.client = a.config("server"), a.config("client")
	return connect(t, s, func(nc net.Conn) { s.serve(nc, testTLS.server, false) })
}

// startTLS switches a client to TLS.
func startTLS(t testing.TB, c *client) *client {
	t.Helper()
	c.mustAck(optStartTLS, nil)
	return &client{t, tls.Client(c.Conn, testTLS.client)}
}

func TestForcedTLS(t *testing.T) {
	s, _ := serve(t, Config{}, newMemVolume(1<<20))
	c := newClient(t, tlsPair(t, s))
	for _, opt := range []uint32{optList, optInfo, optGo, optStructuredReply, optListMetaContext, optSetMetaContext, 4, 11, 99} {
		if last, before := c.opt(opt, []byte{1, 2, 3}); last.typ != repErrTLSReqd || len(before) > 0 {
			t.Errorf("option %d before TLS: %v %v", opt, before, last)
		}
	}
	c = startTLS(t, c)
	if last, _ := c.opt(optStartTLS, nil); last.typ != repErrInvalid {
		t.Errorf("STARTTLS within TLS: %v", last)
	}
	if last, _ := c.opt(optSetMetaContext, cat(str("v"), be32(0))); last.typ != repErrInvalid {
		t.Errorf("meta context without structured replies: %v", last)
	}
	if size, _ := c.goExport("v"); size != 1<<20 {
		t.Errorf("size %d", size)
	}
	c.send(command(0, cmdRead, 1, 0, 4096), command(0, cmdDisc, 2, 0, 0))
	if no, _ := c.simple(); no != eOK {
		t.Errorf("error %d", no)
	}
	c.recv(4096)
	if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil || err.Error() != "EOF" { // close_notify came
		t.Errorf("end: %d, %v", n, err)
	}
}

func TestForcedTLSAbortAndExportName(t *testing.T) {
	s, _ := serve(t, Config{}, newMemVolume(1<<20))
	c := newClient(t, tlsPair(t, s))
	c.mustAck(optAbort, nil)
	c.closed()
	c = newClient(t, tlsPair(t, s))
	c.send(option(optExportName, []byte("v")))
	c.closed()
}

// TestPlainTextBehindStartTLS: what somebody slipped in before the TLS handshake must never be taken for the client's.
func TestPlainTextBehindStartTLS(t *testing.T) {
	s, _ := serve(t, Config{}, newMemVolume(1<<20))
	c := newClient(t, tlsPair(t, s))
	c.send(option(optStartTLS, nil), option(optStructuredReply, nil))
	c.closed()

	c = newClient(t, tlsPair(t, s)) // in a segment of its own
	c.send(option(optStartTLS, nil))
	c.replies(optStartTLS)
	c.send(option(optList, nil))
	rest := make([]byte, 64)
	if n, _ := c.Read(rest); bytes.Contains(rest[:n], be64(magicOptReply)) {
		t.Errorf("answered %x", rest[:n])
	}
}

func TestMutualTLS(t *testing.T) {
	nbdinfo := tool(t, "nbdinfo", "libnbd-bin")
	a, other := newAuthority(t), newAuthority(t)
	s := New(Config{Listen: "127.0.0.1:0", TLS: a.config("server")})
	if err := s.Add("v", "", newMemVolume(1<<20)); err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	defer s.Close(t.Context())
	at := s.Addr().String() + "/v"
	if out := run(t, nbdinfo, "nbds://"+at+"?tls-certificates="+a.folder(a.make("client", a))); !strings.Contains(out, "with TLS") {
		t.Errorf("nbdinfo: %s", out)
	}
	if out, err := try(t, nbdinfo, "nbds://"+at+"?tls-certificates="+a.folder(other.make("client", other))); err == nil {
		t.Errorf("a client of another authority got in: %s", out)
	}
	if out, err := try(t, nbdinfo, "nbd://"+at); err == nil {
		t.Errorf("a client without TLS got in: %s", out)
	}
}
