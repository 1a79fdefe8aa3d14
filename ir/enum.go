package ir

import "fmt"

// parseEnum parses an enumeration, which JSON represents by its String.

func parseEnum[T interface {
	~uint8
	fmt.Stringer
}](to *T, what string, text []byte, values ...T) error {
	for _, *to = range values {
		if (*to).String() == string(text) {
			return nil
		}
	}
	return fmt.Errorf("%s: must be one of %v, got %q", what, values, text)
}

func (f Family) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

func (f *Family) UnmarshalText(text []byte) error { return parseEnum(f, "family", text, IPv4, IPv6) }

func (p Protocol) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

func (p *Protocol) UnmarshalText(text []byte) error {
	return parseEnum(p, "protocol", text, TCP, UDP, SCTP)
}

func (k Kind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

func (k *Kind) UnmarshalText(text []byte) error {
	return parseEnum(k, "kind", text, ClusterIP, ExternalIP, LoadBalancer, NodePort)
}

func (p Policy) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

func (p *Policy) UnmarshalText(text []byte) error {
	return parseEnum(p, "policy", text, Cluster, Local)
}

func (v Verdict) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

func (v *Verdict) UnmarshalText(text []byte) error {
	return parseEnum(v, "verdict", text, Reject, Drop)
}

func (s Scope) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

func (s *Scope) UnmarshalText(text []byte) error {
	return parseEnum(s, "scope", text, Any, Pods, ThisNode)
}

func (m DetectMode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

func (m *DetectMode) UnmarshalText(text []byte) error {
	return parseEnum(m, "detect mode", text, DetectNone, DetectCIDR, DetectInterface, DetectPrefix)
}
