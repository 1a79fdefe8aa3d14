package proof

import (
	"regexp"
	"slices"
	"testing"

	"github.com/proxyc/proxyc/cmd/proxyc/review/reviewtest"
	"github.com/proxyc/proxyc/ir"
)

// The named rule is the changed one, never a correct one. If a rule is missing, none is named.
func TestTheChangedRuleIsNamed(t *testing.T) {
	type row struct{ name, at, by, want string }
	for mode, rows := range map[ir.Mode][]row{
		ir.ModeIPTables: {
			{"another backend, not the first", `--to-destination 10\.244\.2\.10:8080`, "--to-destination 10.244.2.99:8080", `10\.244\.2\.99:8080`},
			{"another port", `--to-destination 10\.244\.2\.10:8080`, "--to-destination 10.244.2.10:8081", `10\.244\.2\.10:8081`},
			{"another probability", `--probability 0\.5000000000`, "--probability 0.2500000000", `--probability 0\.25`},
			{"no masquerade", `(?m)^-A KUBE-(SVC|EXT)-\w+ .*-j KUBE-MARK-MASQ\n`, "", ""},
			{"masquerade of all", `(?m)^(-A KUBE-SVC-\w+) ! -s 10\.244\.0\.0/16 (.*-j KUBE-MARK-MASQ)$`, "$1 $2", `^-d .* -j KUBE-MARK-MASQ`},
			{"no jump", `(?m)^-[AI] (PREROUTING|OUTPUT) .*-j KUBE-SERVICES\n`, "", ""},
			{"a drop", `(?s)(\*filter\n.*?)(-A KUBE-SERVICES )`, "${1}-A KUBE-SERVICES -d 10.96.0.80/32 -j DROP\n$2", `^-d 10\.96\.0\.80/32 -j DROP$`},
			{"a return", `(?m)^-A KUBE-SERVICES -d 10\.96\.0\.10/32 .*-j KUBE-SVC`, "-A KUBE-SERVICES -d 10.96.0.10/32 -j ACCEPT\n$0", `^-d 10\.96\.0\.10/32 -j ACCEPT$`},
		},
		ir.ModeNFTables: {
			{"another backend, not the first", `(10\.96\.0\.10 \. tcp \. 80 \. 1 .*: )10\.244\.\d+\.\d+`, "${1}10.244.9.9", `^dnat `},
			{"a drop", `^(\tchain services \{\n)`, "$1\t\tip daddr 10.96.0.10 drop\n", `^ip daddr 10\.96\.0\.10 drop$`},
		},
		ir.ModeIPVS: {
			{"another backend, not the first", `^(-a -t 10\.96\.0\.10:80 -r )10\.244\.2\.10:8080`, "${1}10.244.2.99:8080", `10\.244\.2\.99:8080`},
			{"a backend less", `^-a -t 10\.96\.0\.10:80 -r 10\.244\.1\.10:8080 .*\n`, "", ""},
			{"a drop", `^-A KUBE-PROXY-FIREWALL `, "-A KUBE-PROXY-FIREWALL -d 10.96.0.10/32 -j DROP\n$0", `^-d 10\.96\.0\.10/32 -j DROP$`},
		},
	} {
		programs := reviewtest.Demo(t, mode)
		texts := dumps(t, programs)
		for _, r := range rows {
			t.Run(string(mode)+"/"+r.name, func(t *testing.T) {
				changed := slices.Clone(texts)
				reviewtest.Edit(t, changed, r.at, r.by)
				p, meaning, dumped := proving(t, programs, changed...)
				if p.Verdict != verdictDifferent {
					t.Fatal(p.Verdict, p.Unknown)
				}
				p.FindCauses(meaning, dumped, false)
				named := 0
				for _, d := range p.Differences {
					if d.RuleB == nil {
						continue
					}
					if named++; r.want == "" || !regexp.MustCompile(r.want).MatchString(d.RuleB.Text) {
						t.Errorf("%s from %s: %s: %s", d.To, d.from(), d.RuleB.Where(), d.RuleB.Text)
					}
				}
				if named == 0 && r.want != "" {
					t.Error("no rule is named")
				}
			})
		}
	}
}

// A missing rule, address or virtual server is named by the side that has it.
func TestTheMissingRuleIsNamed(t *testing.T) {
	for mode, rows := range map[ir.Mode][]struct{ name, missing, want string }{
		ir.ModeIPVS: {
			{"virtual server", `^-A -t 10\.96\.0\.10:80 .*\n(?:-a -t 10\.96\.0\.10:80 .*\n)+`, `^-A -t 10\.96\.0\.10:80 `},
			{"real servers", `^(?:-a -t 10\.96\.0\.10:80 .*\n)+`, `^-a -t 10\.96\.0\.10:80 `},
		},
		ir.ModeIPTables: {
			{"jump", `^-A KUBE-SERVICES -d 10\.96\.0\.10/32 .*-j KUBE-SVC.*\n`, `-j KUBE-SVC`},
		},
	} {
		programs := reviewtest.Demo(t, mode)
		texts := dumps(t, programs)
		for _, r := range rows {
			t.Run(string(mode)+"/"+r.name, func(t *testing.T) {
				changed := slices.Clone(texts)
				reviewtest.Edit(t, changed, r.missing, "")
				a, b := dump(t, programs, texts...), dump(t, programs, changed...)
				p, err := Compare(t.Context(), a, b, programs)
				if err != nil || p.Verdict != verdictDifferent {
					t.Fatal(err, p.Verdict, p.Unknown)
				}
				p.FindCauses(a, b, false)
				for _, d := range p.Differences {
					if d.RuleA == nil || !regexp.MustCompile(r.want).MatchString(d.RuleA.Text) {
						t.Errorf("%s from %s: missing: %v", d.To, d.from(), d.RuleA)
					}
					if d.RuleB != nil {
						t.Errorf("%s from %s: named although it is right: %v", d.To, d.from(), d.RuleB)
					}
				}
			})
		}
	}
}
