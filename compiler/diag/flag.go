package diag

import (
	"slices"
	"strings"
)

// snapshotKinds are kinds of a snapshot that may be passed in place of another document.
var snapshotKinds = []string{"List", "Service", "EndpointSlice", "Endpoints", "Node", "ServiceCIDR", "Pod", "Deployment", "StatefulSet", "DaemonSet", "Ingress"}

// WrongFile returns the message about a document that another flag reads. It returns "" if flag
// reads it, or if no flag is known.
func WrongFile(flag, apiVersion, kind string) string {
	group, _, grouped := strings.Cut(apiVersion, "/")
	article, what, right := "a ", "", ""
	switch {
	case grouped && group == "kubeproxy.config.k8s.io":
		right = "-c"
	case grouped && group == "proxyc.dev" && kind == "Contracts":
		article, right = "a document of kind ", "-f of proxyc assert"
	case grouped && group == "proxyc.dev" && kind == "Programs":
		article, right = "a document of kind ", "--ir"
	case slices.Contains(snapshotKinds, kind) || slices.Contains(snapshotKinds, strings.TrimSuffix(kind, "List")):
		what, right = ", which belongs to a snapshot", "-s"
	}
	if right == "" || right == flag || kind == "" {
		return ""
	}
	if strings.ContainsRune("AEIOU", rune(kind[0])) {
		article = "an "
	}
	return "is " + article + kind + what + ": pass it with " + right
}
