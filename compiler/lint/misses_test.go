package lint

import (
	"testing"

	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// A port that differs from the Service's in one property is reported with that
// property.
func TestMissesOfPorts(t *testing.T) {
	for _, tt := range []struct {
		port        snapshot.EndpointPort
		field, text string
	}{
		{snapshot.EndpointPort{Name: "web", Protocol: "TCP", Port: 80, HasName: true, HasPort: true}, "", ""},
		{snapshot.EndpointPort{Name: "web", Protocol: "TCP", Port: 70000, HasName: true, HasPort: true}, "ports[0].port", "must be 1-65535, got 70000"},
		{snapshot.EndpointPort{Name: "web", Protocol: "UDP", Port: 80, HasName: true, HasPort: true}, "ports[0].protocol", `port "web" is for udp, but that of the Service is port "web" for tcp`},
		{snapshot.EndpointPort{Name: "http", Protocol: "TCP", Port: 80, HasName: true, HasPort: true}, "ports[0].name", `80 is port "http", but that of the Service is port "web"`},
		{snapshot.EndpointPort{Name: "dns", Protocol: "UDP", Port: 53, HasName: true, HasPort: true}, "ports", `the slice has port "dns" for udp, but the Service has port "web" for tcp`},
		{snapshot.EndpointPort{Name: "web", Protocol: "TCP", HasName: true}, "ports[0]", "the port lacks name, number or protocol"},
	} {
		m := misses{port: ir.ServicePort{Port: "web", Protocol: ir.TCP}}
		slice := &snapshot.EndpointSlice{Ports: []snapshot.EndpointPort{tt.port}}
		if served := m.serves(slice); served != (tt.text == "") || served != (len(m.found) == 0) {
			t.Errorf("%+v: served: %t, %+v", tt.port, served, m.found)
		} else if !served && (len(m.found) != 1 || m.found[0].Text != tt.text || m.found[0].Origin.Field != tt.field) {
			t.Errorf("%+v: got %+v, want %s: %s", tt.port, m.found, tt.field, tt.text)
		}
	}
}
