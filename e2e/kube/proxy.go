package kube

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
)

// A Proxy is a running kube-proxy or proxyc.
type Proxy struct {
	*Process

	node *applytest.Namespace
	http *http.Client
}

// StartProxy starts a proxy on a node: the executable with its arguments, like a DaemonSet. Its
// log goes to dir.
func StartProxy(node *applytest.Namespace, dir, name, binary string, args ...string) (*Proxy, error) {
	process, err := start(node, dir, name, binary, args...)
	if err != nil {
		return nil, err
	}
	dial := func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
		err = node.Do(func() error {
			conn, err = (&net.Dialer{}).DialContext(ctx, network, addr)
			return err
		})
		return conn, err
	}
	return &Proxy{Process: process, node: node,
		http: &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}}, nil
}

// Get sends a request to the proxy from its node, and returns the code and the body.
func (p *Proxy) Get(ctx context.Context, url string) (code int, body string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	resp, err := p.http.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(data), err
}

// Ready waits until proxyc reports that the kernel has the wanted rules.
func (p *Proxy) Ready(ctx context.Context) error {
	return Until(ctx, 20*time.Millisecond, func(ctx context.Context) error {
		code, body, err := p.Get(ctx, "http://127.0.0.1:10256/readyz")
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("/readyz: %d %s", code, body)
		}
		if err != nil {
			return fmt.Errorf("%w\n%s", err, p.Tail())
		}
		return nil
	})
}
