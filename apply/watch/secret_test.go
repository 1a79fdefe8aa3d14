package watch

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/proxyc/proxyc/compiler/config"
)

// kubeconfig writes a kubeconfig with lines of its cluster and user.
func kubeconfig(t *testing.T, cluster, user string) config.ClientConnection {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {%s}}]\nusers: [{name: c, user: {%s}}]\ncontexts: [{name: c, context: {cluster: c, user: c}}]\n", cluster, user)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return config.ClientConnection{Kubeconfig: file}
}

// A user and password in the server's URL are sent, as net/http does, and appear nowhere else.
func TestPasswordInURL(t *testing.T) {
	asked := make(chan *http.Request, 10)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { asked <- r }))
	secret := strings.Replace(server.URL, "://", "://hunter2user:hunter2%2Fpass@", 1) + "?token=hunter2"
	for name, from := range map[string]struct{ master, cluster, user string }{
		"kubeconfig":              {"", "server: '" + secret + "'", ""},
		"kubeconfig with a token": {"", "server: '" + secret + "'", "token: other"},
		"--master":                {secret, "server: http://127.0.0.1:1", ""},
		"--master without scheme": {strings.TrimPrefix(secret, "http://"), "server: http://127.0.0.1:1", ""},
	} {
		t.Run(name, func(t *testing.T) {
			url, client, err := Client(kubeconfig(t, from.cluster, from.user), from.master, "proxyc/1")
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(url, "hunter2") {
				t.Errorf("server: %s", url)
			}
			resp, err := client.Get(url + "/version")
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if user, password, _ := (<-asked).BasicAuth(); user != "hunter2user" || password != "hunter2/pass" {
				t.Errorf("the server receives user %q and password %q", user, password)
			}
		})
	}
	server.Close()
	for _, context := range []string{"", "c"} {
		base, err := asKubectl(kubeconfig(t, "server: '"+secret+"'", "").Kubeconfig, context, "proxyc/1")
		if err != nil || strings.Contains(base.Host, "hunter2") {
			t.Errorf("server: %v, %v", base, err)
		}
	}
}

// Errors about a URL omit it.
func TestPasswordInErrors(t *testing.T) {
	for _, cluster := range []string{
		"server: 'http://me:hunter2@host:port'",
		"server: 'http://me:hunter2#x@host'",
		"server: 'http://me:hunter2/x@host'",
		"server: 'http://me:1/hunter2@host'",
		"server: 'me:hunter2%zz@host'",
		"server: 'http://host', proxy-url: 'http://me:hunter2@host:port'",
		"server: 'http://host', proxy-url: 'http://me:hunter2#x@host'",
		"server: 'http://host', proxy-url: 'me:hunter2@host'",
	} {
		file := kubeconfig(t, cluster, "")
		_, _, err := Client(file, "", "proxyc/1")
		_, asErr := asKubectl(file.Kubeconfig, "", "proxyc/1")
		for _, err := range []error{err, asErr} {
			if err == nil || strings.Contains(err.Error(), "hunter2") || !strings.Contains(err.Error(), "kubeconfig: ") {
				t.Errorf("%s: %v", cluster, err)
			}
		}
	}
}
