package kube

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/proxyc/proxyc/apply/applytest"
)

// Users of a Cluster. The token of each is its name.
const (
	Admin         = "admin"
	KubeProxyUser = "system:kube-proxy"                        // the name in kubeadm's certificate; the server binds it to system:node-proxier
	ProxycUser    = "system:serviceaccount:kube-system:proxyc" // from docs/deploy/rbac.yaml
)

// Addresses inside the control plane's namespace.
const (
	etcdAddr = "127.0.0.1:2379"
	apiAddr  = "127.0.0.1:6443"
)

// A Cluster is etcd and a kube-apiserver in a network namespace. RBAC is enabled, each request is
// logged (AuditLog), and Services of both families may have any address in ServiceRange.
type Cluster struct {
	Dir string // data, certificates, logs

	ns           *applytest.Namespace
	etcdBinary   string
	serverBinary string
	client       *kubernetes.Clientset
	objects      *dynamic.DynamicClient

	mu        sync.Mutex
	etcd, api *Process
}

// ServiceRange contains the addresses of Services. The first of each family is that of Service
// default/kubernetes.
const ServiceRange = "10.96.0.0/12,fd00:10:96::/108"

// Start starts a cluster whose files are in dir, and waits until it is ready. If necessary it
// first builds the tools.
func Start(ctx context.Context, dir string) (*Cluster, error) {
	c := &Cluster{Dir: dir}
	var err error
	if c.etcdBinary, err = Tool(ctx, Etcd); err != nil {
		return nil, err
	}
	if c.serverBinary, err = Tool(ctx, APIServer); err != nil {
		return nil, err
	}
	if err := c.writeFiles(); err != nil {
		return nil, err
	}
	if c.ns, err = applytest.NewNamespace("control"); err != nil {
		return nil, err
	}
	config := &rest.Config{Host: "https://" + apiAddr, BearerToken: Admin, QPS: -1, Dial: c.dial,
		TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	err = errors.Join(c.StartEtcd(), c.StartAPI(ctx))
	if err == nil {
		c.client, err = kubernetes.NewForConfig(config)
	}
	if err == nil {
		c.objects, err = dynamic.NewForConfig(config)
	}
	if err == nil {
		err = Until(ctx, 100*time.Millisecond, c.ready)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Client returns a client of the cluster's administrator, without a rate limit.
func (c *Cluster) Client() *kubernetes.Clientset { return c.client }

// Close ends the cluster.
func (c *Cluster) Close() error { return errors.Join(c.KillAPI(), c.KillEtcd(), c.ns.Close()) }

// AuditLog returns the file with one JSON object for each completed request.
func (c *Cluster) AuditLog() string { return filepath.Join(c.Dir, "audit.log") }

// CA returns the file with the certificate of the authority that signed the API server's.
func (c *Cluster) CA() string { return filepath.Join(c.Dir, "certs", "apiserver.crt") }

// writeFiles writes the files that the API server reads.
func (c *Cluster) writeFiles() error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	tokens := fmt.Sprintf("%[1]s,%[1]s,1,system:masters\n%[2]s,%[2]s,2\n%[3]s,%[3]s,3\n", Admin, KubeProxyUser, ProxycUser)
	files := map[string]string{
		"tokens.csv": tokens,
		"audit.yaml": "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived, ResponseStarted]\nrules: [{level: Metadata}]\n",
		"sa.key":     string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})),
	}
	for name, text := range files {
		err = errors.Join(err, os.WriteFile(filepath.Join(c.Dir, name), []byte(text), 0o600))
	}
	return err
}

// StartEtcd starts etcd.
func (c *Cluster) StartEtcd() (err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.etcd, err = start(c.ns, c.Dir, "etcd", c.etcdBinary,
		"--data-dir", filepath.Join(c.Dir, "etcd"), "--log-level", "warn", "--unsafe-no-fsync",
		"--listen-client-urls", "http://"+etcdAddr, "--advertise-client-urls", "http://"+etcdAddr,
		"--listen-peer-urls", "http://127.0.0.1:0")
	return err
}

// StartAPI starts the API server, and waits until it is ready.
func (c *Cluster) StartAPI(ctx context.Context) error {
	file := func(name string) string { return filepath.Join(c.Dir, name) }
	api, err := start(c.ns, c.Dir, "kube-apiserver", c.serverBinary,
		"--etcd-servers", "http://"+etcdAddr, "--cert-dir", file("certs"),
		"--bind-address", "127.0.0.1", "--secure-port", "6443", "--advertise-address", "192.0.2.1",
		"--token-auth-file", file("tokens.csv"), "--authorization-mode", "RBAC",
		"--service-account-key-file", file("sa.key"), "--service-account-signing-key-file", file("sa.key"),
		"--service-account-issuer", "https://kubernetes.default.svc", "--disable-admission-plugins", "ServiceAccount",
		"--allow-privileged", "--service-cluster-ip-range", ServiceRange, "--service-node-port-range", "1-65535",
		"--endpoint-reconciler-type", "none", "--max-requests-inflight", "0", "--max-mutating-requests-inflight", "0",
		"--enable-priority-and-fairness=false",
		"--audit-log-path", c.AuditLog(), "--audit-policy-file", file("audit.yaml"), "--audit-log-mode", "blocking")
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.api = api
	c.mu.Unlock()
	if c.client == nil {
		return nil
	}
	return Until(ctx, 100*time.Millisecond, c.ready)
}

// APIPid returns the process ID of the API server.
func (c *Cluster) APIPid() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.api.Pid()
}

// ready returns an error unless the API server is ready, and etcd with it.
func (c *Cluster) ready(ctx context.Context) error {
	_, err := c.client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
	if err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		return fmt.Errorf("kube-apiserver: %w\n%s", err, c.api.Tail())
	}
	return nil
}

// Compact makes etcd forget all past versions.
func (c *Cluster) Compact(ctx context.Context) error {
	var head struct{ Header struct{ Revision string } }
	if err := c.askEtcd(ctx, "/v3/kv/range", `{"key": "AA=="}`, &head); err != nil {
		return err
	}
	return c.askEtcd(ctx, "/v3/kv/compaction", fmt.Sprintf(`{"revision": %q, "physical": true}`, head.Header.Revision), new(any))
}

func (c *Cluster) askEtcd(ctx context.Context, path, question string, answer any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+etcdAddr+path, strings.NewReader(question))
	if err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{DialContext: c.dial, DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("etcd: %s: %s", path, resp.Status)
	}
	return json.NewDecoder(resp.Body).Decode(answer)
}

// KillAPI kills the API server, KillEtcd etcd.
func (c *Cluster) KillAPI() error  { return c.kill(&c.api) }
func (c *Cluster) KillEtcd() error { return c.kill(&c.etcd) }

func (c *Cluster) kill(which **Process) error {
	c.mu.Lock()
	p := *which
	*which = nil
	c.mu.Unlock()
	if p == nil {
		return nil
	}
	return p.Kill()
}

// dial connects to an address inside the namespace of the control plane.
func (c *Cluster) dial(ctx context.Context, network, addr string) (conn net.Conn, err error) {
	err = c.ns.Do(func() error {
		conn, err = (&net.Dialer{}).DialContext(ctx, network, cmp.Or(addr, apiAddr))
		return err
	})
	return conn, err
}
