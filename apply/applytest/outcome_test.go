package applytest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestRecordsKeepTheirForm: what is written anew differs in what was added alone.
func TestRecordsKeepTheirForm(t *testing.T) {
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

// TestTwinsRecord: IPv6 is held against what came of IPv4, unless it was played itself.
func TestTwinsRecord(t *testing.T) {
	r := &Records{Results: map[string]map[string]map[string]Outcome{
		IPv4: {
			"both": {"1.1 ext -> 192.0.2.11:30080/tcp": {"reached": "over IPv4"}},
			"one":  {"1.1 ext -> 192.0.2.11:30080/tcp": {"reached": "over IPv4"}},
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
		{IPv6, "both", "1.2 ext -> 2001:db8:0:1::11:30080/tcp", nil},
		{IPv6, "neither", "1.1 ext -> 2001:db8:0:1::11:30080/tcp", nil},
	} {
		got, _ := r.Want("ipvs", tt.family, tt.name, tt.key, nil)
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s %s %s (-want +got):\n%s", tt.family, tt.name, tt.key, diff)
		}
	}
}
