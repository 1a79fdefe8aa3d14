package review

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/apply/daemon/status"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// Ignored describes what the rules lack: Services of another proxy or of none, invalid ones in
// a file, and Services with invalid parts according to the compiler. Without it a command would
// report that such a Service does not exist.
type Ignored struct {
	snap     *snapshot.Snapshot
	errors   objectErrors
	services []*snapshot.Service // in snap, with invalid parts
}

// objectErrors are the compiler's errors, by object.
type objectErrors map[string][]string

// errorsOf returns the errors among a daemon's findings.
func errorsOf(findings []status.Finding) objectErrors {
	errs := objectErrors{}
	for _, f := range findings {
		if f.Severity == diag.Error.String() {
			errs[f.Object] = append(errs[f.Object], f.Text())
		}
	}
	return errs
}

// IgnoredOf returns what the rules of an input lack.
func IgnoredOf(j *Input) Ignored {
	l := Ignored{snap: j.Snapshot, errors: j.errors}
	if l.errors == nil {
		list := slices.DeleteFunc(j.Diags.Sorted(), func(d diag.Diagnostic) bool { return d.Severity != diag.Error })
		j.Locate(list)
		l.errors = objectErrors{}
		for _, d := range list {
			l.errors[d.Object] = append(l.errors[d.Object], d.String())
		}
	}
	for _, svc := range l.snap.Services() {
		if l.Of(svc.Name, "") != "" {
			l.services = append(l.services, svc)
		}
	}
	return l
}

// Of describes what is ignored of a Service, and why; "" for nothing, or if it does not exist.
// which follows its name, such as ", which has 10.0.0.1,".
func (l Ignored) Of(name ir.Name, which string) string {
	if svc := l.snap.Service(name); svc != nil {
		if why := compiler.Ignored(svc); why != "" {
			return "Service " + name.String() + which + " has no rules: " + why
		}
	} else if left := l.snap.InvalidService(name); left != nil {
		return "Service " + name.String() + which + " is ignored: " + left.Why
	}
	if errs := l.errors["Service "+name.String()]; len(errs) > 0 {
		return name.String() + " is ignored: " + strings.Join(errs, "; ")
	}
	return ""
}

// At describes the same for all Services with an address, or with the node port if it is not 0.
func (l Ignored) At(addr netip.Addr, nodePort uint16) (says []string) {
	for _, svc := range l.services {
		isPort := slices.ContainsFunc(svc.Ports, func(p snapshot.ServicePort) bool { return p.NodePort == int32(nodePort) })
		if has := slices.Contains(svc.Addrs(), addr); has || nodePort != 0 && isPort {
			says = append(says, l.Of(svc.Name, which(addr, has)))
		}
	}
	for _, left := range l.snap.Invalid() {
		has := slices.Contains(left.Addrs, addr)
		if left.IsService() && (has || nodePort != 0 && slices.Contains(left.NodePorts, int32(nodePort))) {
			says = append(says, l.Of(left.Service, which(addr, has)))
		}
	}
	return says
}

// which returns the text after the name of a Service with an address.
func which(addr netip.Addr, has bool) string {
	if !has {
		return ""
	}
	return ", which has " + addr.String() + ","
}
