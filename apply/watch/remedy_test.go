package watch

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Each failure has the fix for its own cause.
func TestRemedy(t *testing.T) {
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.TLS = &tls.Config{ClientAuth: tls.RequestClientCert, MaxVersion: tls.VersionTLS12}
	server.StartTLS()
	defer server.Close()
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	strict := httptest.NewUnstartedServer(http.NotFoundHandler())
	strict.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	strict.StartTLS()
	defer strict.Close()
	strictRoots := x509.NewCertPool()
	strictRoots.AddCert(strict.Certificate())
	get := func(url string, c *tls.Config) error {
		_, err := (&http.Client{Transport: &http.Transport{TLSClientConfig: c}}).Get(url)
		return err
	}
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	services := schema.GroupResource{Resource: "services"}
	for name, tt := range map[string]struct {
		err  error
		want string
	}{
		"another CA":            {get(server.URL, nil), "certificate-authority"},
		"another name":          {get(server.URL, &tls.Config{RootCAs: roots, ServerName: "kube.example.net"}), "tls-server-name"},
		"a late clock":          {get(server.URL, &tls.Config{RootCAs: roots, Time: func() time.Time { return time.Unix(1<<40, 0) }}), "clock"},
		"no client certificate": {get(strict.URL, &tls.Config{RootCAs: strictRoots}), "credentials"},
		"no TLS":                {get(strings.Replace(plain.URL, "http", "https", 1), nil), "address"},
		"nobody listens":        {get(gone.URL, nil), "address"},
		"a token that ended":    {apierrors.NewUnauthorized("Unauthorized"), "credentials"},
		"no token":              {apierrors.NewForbidden(services, "", errString(`User "system:anonymous" cannot list`)), "credentials"},
		"no right":              {apierrors.NewForbidden(services, "", errString(`User "proxyc" cannot list`)), "ClusterRole"},
		"no error":              {nil, ""},
		"a failing server":      {apierrors.NewInternalError(errString("etcd")), ""},
	} {
		if got := Remedy(tt.err); !strings.Contains(got, tt.want) || (got == "") != (tt.want == "") {
			t.Errorf("%s: %q, want …%s…: %v", name, got, tt.want, tt.err)
		}
	}
}

type errString string

func (e errString) Error() string { return string(e) }
