package etcd

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/hawser-ha/hawser/agent/config"
	"github.com/hawser-ha/hawser/agent/coord"
)

// FromNode makes the Config of a node's client.
func FromNode(n config.NodeConfig, log *slog.Logger) (Config, error) {
	t, err := LoadTLS(n.Etcd.ClientTLS)
	if err != nil {
		return Config{}, err
	}
	c := Config{Endpoints: n.EtcdEndpoints(), TLS: t, User: n.Etcd.User, RPCTimeout: n.Lease.RPCTimeout, Log: log}
	if file := n.Etcd.PasswordFile; file != "" {
		c.Password = func() (string, error) {
			data, err := os.ReadFile(file)
			return strings.TrimRight(string(data), "\r\n"), err
		}
	}
	return c, nil
}

// LoadTLS reads the files of a client; nil: there are none. Certificate and key are read anew for each connection, so they can be renewed.
func LoadTLS(f config.TLSFiles) (*tls.Config, error) {
	if !f.On() {
		return nil, nil
	}
	pem, err := os.ReadFile(f.CA)
	if err != nil {
		return nil, fmt.Errorf("CA of etcd: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("CA of etcd: %s holds no certificate", f.CA)
	}
	t := &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	if f.Cert != "" {
		if _, err := tls.LoadX509KeyPair(f.Cert, f.Key); err != nil { // say it now rather than at each connection
			return nil, fmt.Errorf("certificate for etcd: %w", err)
		}
		t.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			c, err := tls.LoadX509KeyPair(f.Cert, f.Key)
			return &c, err
		}
	}
	return t, nil
}

// Read opens the cluster for reading alone, from a machine that only reaches etcd: nothing can be changed through the Store.
func Read(cfg Config, cluster string) (*coord.Store, io.Closer, error) {
	c, err := Open(cfg)
	if err != nil {
		return nil, nil, err
	}
	return coord.New(coord.Options{Backend: coord.ReadOnly(c), Prefix: coord.Prefix(cluster), Log: cfg.Log}), c, nil
}
