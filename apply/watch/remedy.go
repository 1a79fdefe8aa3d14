package watch

import (
	"context"
	"crypto/x509"
	"errors"
	"net"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Remedy returns how an operator fixes the cause of a failed request to the API server;
// "" if the error has no known cause. It accepts errors of the transport and refusals of
// the server (apierrors.APIStatus), wrapped or not.
func Remedy(err error) string {
	const (
		account = "renew the credentials: the token or client certificate of the kubeconfig, or the pod's ServiceAccount"
		address = "check that the server's address is the API server's, and that it is reachable from here without a Service"
	)
	switch {
	case err == nil, errors.Is(err, context.Canceled):
		return ""
	case apierrors.IsUnauthorized(err), apierrors.IsForbidden(err) && strings.Contains(err.Error(), "system:anonymous"):
		return account
	case apierrors.IsForbidden(err):
		return "grant the right by a ClusterRole, as docs/deploy/rbac.yaml does, and bind it to this account"
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return "set the cluster's CA in the kubeconfig: certificate-authority or certificate-authority-data"
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return "use a server address that the API server's certificate names, or set tls-server-name in the kubeconfig"
	}
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok {
		if invalid.Reason == x509.Expired {
			return "renew the API server's certificate, or set this machine's clock"
		}
		return "replace the API server's certificate"
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "remote error" { // a TLS alert: the server rejects the client certificate
		return account
	}
	if _, ok := errors.AsType[net.Error](err); ok || errors.Is(err, context.DeadlineExceeded) {
		return address
	}
	return ""
}
