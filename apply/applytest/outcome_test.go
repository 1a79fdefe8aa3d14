package applytest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestRecordsFormat checks that rewritten records differ only in added ones.
func TestRecordsFormat(t *testing.T) {
	const recorded = "../../testdata/conformance/expected"
	for _, mode := range []string{"iptables", "nftables", "ipvs"} {
		r, err := LoadRecords(os.DirFS(recorded), mode+".json")
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "written.json")
		if err := r.Write(file); err != nil {
			t.Fatal(err)
		}
		read, err := os.ReadFile(filepath.Join(recorded, mode+".json"))
		if err != nil {
			t.Fatal(err)
		}
		written, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(strings.Split(string(read), "\n"), strings.Split(string(written), "\n")); diff != "" {
			t.Errorf("%s (-read +written):\n%s", mode, diff)
		}
	}
}

// TestIPv6Records checks that IPv6 is compared with the records of IPv4, unless it has its own.
func TestIPv6Records(t *testing.T) {
	r := &Records{Results: map[string]map[string]map[string]Outcome{
		IPv4: {
			"both": {"1.1 ext -> 192.0.2.11:30080/tcp": {"reached": "over IPv4"}},
			"one":  {"1.1 ext -> 192.0.2.11:30080/tcp": {"reached": "over IPv4"}},
			"vip":  {"1.1 node1 -> 203.0.113.10:80/tcp": {"reached": map[string]any{"pod1a:8080": []any{"203.0.113.10"}}}},
		},
		IPv6: {"both": {"1.1 ext -> 2001:db8:0:1::11:30080/tcp": {"reached": "over IPv6"}}},
	}}
	for _, tt := range []struct {
		family, name, key string
		want              Outcome
	}{
		{IPv4, "one", "1.1 ext -> 192.0.2.11:30080/tcp", Outcome{"reached": "over IPv4"}},
		{IPv6, "one", "1.1 ext -> 2001:db8:0:1::11:30080/tcp", Outcome{"reached": "over IPv4"}},
		{IPv6, "both", "1.1 ext -> 2001:db8:0:1::11:30080/tcp", Outcome{"reached": "over IPv6"}},
		{IPv6, "vip", "1.1 node1 -> 2001:db8:203::10:80/tcp", Outcome{"reached": map[string]any{"pod1a:8080": []any{"2001:db8:203::10"}}}},
		{IPv6, "both", "1.2 ext -> 2001:db8:0:1::11:30080/tcp", nil},
		{IPv6, "neither", "1.1 ext -> 2001:db8:0:1::11:30080/tcp", nil},
	} {
		got, _ := r.Want("ipvs", tt.family, tt.name, tt.key, nil)
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s %s %s (-want +got):\n%s", tt.family, tt.name, tt.key, diff)
		}
	}
}

func TestSame(t *testing.T) {
	for _, tt := range []struct {
		flow      Flow
		want, got Outcome
		same      bool
	}{
		{Flow{}, Outcome{"failed": []string{"timeout"}}, Outcome{"failed": []string{"timeout"}}, true},
		{Flow{}, Outcome{"failed": []string{"timeout"}}, Outcome{"failed": []string{"refused"}}, false},
		{Flow{}, Outcome{"unstable": true}, Outcome{"failed": []string{"refused"}}, true},
		{Flow{Unstable: true}, nil, Outcome{"failed": []string{"refused"}}, true},
		{Flow{Any: true}, Outcome{"reached": true}, Outcome{"reached": true}, true},
		{Flow{Any: true}, Outcome{"reached": true}, Outcome{"failed": []string{"timeout"}}, false},
		{Flow{Again: "c1"}, Outcome{"alive": true}, Outcome{"alive": true}, true},
		{Flow{Again: "c1"}, Outcome{"alive": true}, Outcome{"alive": false}, false},
		{Flow{Again: "c1"}, Outcome{"failed": []string{"timeout"}}, Outcome{"alive": false}, true},
		{Flow{Again: "c1"}, Outcome{"failed": []string{"timeout"}}, Outcome{"alive": true}, false},
	} {
		if got := tt.flow.Same(tt.want, tt.got); got != tt.same {
			t.Errorf("%+v: want %s, got %s: same is %v", tt.flow, tt.want, tt.got, got)
		}
	}
}

// An outcome without a timeout is one in which every try got a reply or a rejection.
func TestAnswered(t *testing.T) {
	for _, tt := range []struct {
		recorded Outcome
		want     bool
	}{
		{Outcome{"reached": map[string]any{"a:80": []any{"node1"}}}, true},
		{Outcome{"failed": []any{"refused"}}, true},
		{Outcome{"reached": true, "failed": []any{"refused", "timeout"}}, false},
		{Outcome{"failed": []any{"timeout"}}, false},
		{Outcome{"alive": false}, false},
		{Outcome{"alive": true}, true},
		{nil, false},
	} {
		if got := tt.recorded.answered(); got != tt.want {
			t.Errorf("%s: %v", tt.recorded, got)
		}
	}
}
