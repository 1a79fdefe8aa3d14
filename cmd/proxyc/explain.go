package main

import (
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render"
)

type explainCmd struct {
	input

	What string `arg:"" help:"A chain, a map element, IP:PORT[/PROTO], an IP, the number of a node port, or NAMESPACE/NAME[:PORT] of a Service."`
}

// Run prints what the IR and the rules hold of one thing, with the Services
// and fields behind it; it is a finding (exit 1) when that is nothing.
func (c *explainCmd) Run(e *env) error {
	job, err := c.load(e)
	if err != nil {
		return err
	}
	programs := job.compile()
	s := newSubject(c.What)
	found := false
	err = buffered(e.stdout, func(w io.Writer) (err error) {
		if found, err = s.writeIR(w, programs); err != nil {
			return err
		}
		_, _, rendered := outputs(programs)
		for entry := range rendered.Explain {
			if !s.isEntry(entry) {
				continue
			}
			found = true
			if err = writeEntry(w, entry); err != nil {
				break
			}
		}
		return err
	})
	if err := job.finish(e, err); err != nil {
		return err
	}
	if !found {
		fmt.Fprintf(e.stderr, "%q: nothing on node %s in mode %s has this name\n", c.What, programs[0].Node.Name, programs[0].Node.Mode)
		return errFindings
	}
	return nil
}

// subject is what somebody wants explained: a Service, an address, a node port,
// or words.
type subject struct {
	service ir.Name
	name    string     // with service: of one of its ports, empty for all
	addr    netip.Addr // with port 0: all ports
	port    uint16     // without addr: a node port
	proto   ir.Protocol
	words   string // of a chain or element, with single spaces about it
}

func newSubject(what string) subject {
	what = strings.TrimSpace(what)
	text, protoText, hasProto := strings.Cut(what, "/")
	proto, isProto := ir.ParseProtocol(protoText)
	if !hasProto || isProto {
		if n, err := strconv.ParseUint(text, 10, 16); err == nil && n > 0 {
			return subject{port: uint16(n), proto: proto}
		}
		if ap, err := netip.ParseAddrPort(text); err == nil {
			return subject{addr: ap.Addr(), port: ap.Port(), proto: proto}
		}
		if addr, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil && !hasProto {
			return subject{addr: addr}
		}
	}
	if hasProto && !strings.ContainsAny(what, " .") && strings.Count(what, "/") == 1 {
		service, port, _ := strings.Cut(protoText, ":")
		return subject{service: ir.Name{Namespace: text, Name: service}, name: port}
	}
	return subject{words: " " + strings.Join(strings.Fields(what), " ") + " "}
}

func (s *subject) isMatch(m ir.Match) bool {
	if s.addr.IsValid() {
		return m.Addr == s.addr && (s.port == 0 || m.Port == s.port) && (s.proto == 0 || m.Protocol == s.proto)
	}
	return s.port != 0 && m.NodeAddrs() && m.Port == s.port && (s.proto == 0 || m.Protocol == s.proto)
}

func (s *subject) isService(svc *ir.Service) bool {
	if s.service != (ir.Name{}) {
		return svc.Name == s.service
	}
	for i := range svc.Frontends {
		if s.isMatch(svc.Frontends[i].Match) {
			return true
		}
	}
	return false
}

func (s *subject) isEntry(e render.Entry) bool {
	switch {
	case s.words != "":
		return strings.Contains(" "+e.Where+" ", s.words)
	case s.service != (ir.Name{}):
		return e.Port.Service == s.service && (s.name == "" || e.Port.Port == s.name)
	}
	m, ok := ir.ParseMatch(e.Match)
	return ok && s.isMatch(m)
}

// writeIR writes the Services that the subject names or belongs to.
func (s *subject) writeIR(w io.Writer, programs []*ir.Program) (found bool, err error) {
	for _, p := range programs {
		for i := range p.Services {
			if svc := &p.Services[i]; s.isService(svc) {
				found = true
				if _, err := fmt.Fprintf(w, "# %s\n%s\n", p.Family, svc.Text()); err != nil {
					return found, err
				}
			}
		}
	}
	return found, nil
}
