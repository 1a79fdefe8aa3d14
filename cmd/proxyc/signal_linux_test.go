package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Ctrl-C ends a verb quietly, with the status that a shell reports for SIGINT: while it reads its input, and while it
// waits for an API server.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{}, 1)
	over := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case asked <- struct{}{}:
		default:
		}
		select {
		case <-r.Context().Done():
		case <-over:
		}
	}))
	defer server.Close()
	defer close(over)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","clusters":[{"name":"a","cluster":{"server":%q}}],"contexts":[{"name":"a","context":{"cluster":"a"}}],"current-context":"a"}`, server.URL)
	must(t, os.WriteFile(kubeconfig, []byte(text), 0o600))
	for _, args := range []string{
		"compile -s -", "lint -s -", "report -s -", "migrate -s - --to ipvs", "prove -s - ir mode:nftables", "diff -s - --new-mode iptables", "trace -s - --from 10.244.1.10 --to 10.96.0.10:80/tcp",
		"snapshot --kubeconfig " + kubeconfig,
	} {
		cmd := exec.CommandContext(t.Context(), "proxyc", strings.Fields(args)...)
		var out strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &out
		stdin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		must(t, cmd.Start())
		if strings.Contains(args, "-s -") {
			// More than a pipe holds: the write ends when the program has begun to read.
			if _, err := stdin.Write([]byte(strings.Repeat("#\n", 1<<16))); err != nil {
				t.Errorf("%s: %v", args, err)
			}
		} else {
			<-asked
		}
		cmd.Process.Signal(os.Interrupt)
		cmd.Wait()
		status := cmd.ProcessState.Sys().(syscall.WaitStatus)
		code := status.ExitStatus()
		if status.Signaled() {
			code = 128 + int(status.Signal())
		}
		if code != 130 || out.Len() > 0 {
			t.Errorf("%s: status %d, want 130:\n%s", args, code, &out)
		}
	}
}
