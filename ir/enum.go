package ir

import "fmt"

// parseEnum parses an enumeration, which JSON represents by its String.

func parseEnum[T interface {
	~uint8
	fmt.Stringer
}](what string, text []byte, values ...T) (T, error) {
	for _, v := range values {
		if v.String() == string(text) {
			return v, nil
		}
	}
	return 0, fmt.Errorf("%s: must be one of %v, got %q", what, values, text)
}

func (f Family) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

func (f *Family) UnmarshalText(text []byte) (err error) {
	*f, err = parseEnum("family", text, IPv4, IPv6)
	return err
}

func (p Protocol) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

func (p *Protocol) UnmarshalText(text []byte) (err error) {
	*p, err = parseEnum("protocol", text, TCP, UDP, SCTP)
	return err
}

func (k Kind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

func (k *Kind) UnmarshalText(text []byte) (err error) {
	*k, err = parseEnum("kind", text, ClusterIP, ExternalIP, LoadBalancer, NodePort)
	return err
}

func (p Policy) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

func (p *Policy) UnmarshalText(text []byte) (err error) {
	*p, err = parseEnum("policy", text, Cluster, Local)
	return err
}

func (v Verdict) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

func (v *Verdict) UnmarshalText(text []byte) (err error) {
	*v, err = parseEnum("verdict", text, Reject, Drop)
	return err
}

func (s Scope) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

func (s *Scope) UnmarshalText(text []byte) (err error) {
	*s, err = parseEnum("scope", text, Any, Pods, ThisNode)
	return err
}

func (m DetectMode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

func (m *DetectMode) UnmarshalText(text []byte) (err error) {
	*m, err = parseEnum("detect mode", text, DetectNone, DetectCIDR, DetectInterface, DetectPrefix)
	return err
}
