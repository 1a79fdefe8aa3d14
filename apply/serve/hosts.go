package serve

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// rejectForeignHosts rejects requests to a loopback address with the Host header of another host. A
// web page in a browser on the node could otherwise resolve its own name to 127.0.0.1, and read what
// only the node may (DNS rebinding). Other addresses need no such protection, since clients can reach
// them directly. Load balancers use unknown names there. names are the node's own.
func rejectForeignHosts(h http.Handler, names []string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		at, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
		if ok && at.IP.IsLoopback() && !isOwnName(r.Host, names) {
			http.Error(w, fmt.Sprintf("Host: must be an address, localhost or the node's name, got %q", r.Host), http.StatusMisdirectedRequest)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// isOwnName reports whether a Host header contains an IP address, localhost or one of names.
func isOwnName(host string, names []string) bool {
	name := strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if before, _, err := net.SplitHostPort(host); err == nil {
		name = before
	}
	if _, err := netip.ParseAddr(name); err == nil || name == "" { // HTTP/1.0 has no Host header
		return true
	}
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	return name == "localhost" || slices.Contains(names, name)
}
