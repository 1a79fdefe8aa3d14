package manifest

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/proxyc/proxyc/compiler/snapshot"
)

// seeds are examples of YAML features for the fuzzer.
var seeds = []string{
	svcA, svcB, sliceA, jsonA, list(svcA, svcB, list(secret)), "--- # x\n" + jsonA + jsonN,
	"a: 1\nb: -2\nc: 0x10\nd: 1e3\ne: 0o7\nf: 007\ng: 1_000\nh: 1.5\ni: .5\nj: 9223372036854775808\nk: -0\nl: 0\n",
	"a: yes\nb: No\nc: on\nd: true\ne: True\nf: null\ng: ~\nh:\ni: y\nj: N\nk: .inf\nl: <<\n",
	"a: 10.0.0.1\nb: 10.0.0.0/8\nc: fd00::1\nd: 2001:db8::1\ne: 1:20\nf: 2024-01-02\ng: 2024-01-02T03:04:05Z\nh: 128Mi\ni: 250m\nj: 6f1b2c3d-0000-4000-8000-000000000000\n",
	"a: \"x\\n\\t\\\\ \\\"y\\\"\"\nb: 'it''s'\nc: 'x # y' # z\nd: \"\\u0041\"\ne: x y # z\nf: x#y\ng: \"multi\n  line\"\nh: plain\n  folded\n",
	"a: |\n  one\n   two\n\n  three\n\n\nb: |-\n  x\nc: |+\n  y\n\nd: >\n  z\n  z\ne: |2\n   w\nf: |\n\n  v\n",
	"a:\n- 1\n-\n- - 2\n  - 3\n- b: 1\n  c: 2\n-   d: 4\n    e: 5\nf:\n  - x\n  -\n    g: h\ni: {}\nj: []\nk: {l: m}\nn: [o, p]\n",
	"&a a: &b x\nc: *b\n<<: {d: e}\n!!str f: !!int \"7\"\n? g\n: h\n",
	"\"a\": 1\n'b': 2\n1: 3\ntrue: 4\nc d: 5\n.: {}\nf:x: {}\nk/l.m-n_o: 6\n~: 7\n",
	"a: 1\n  b: 2\n", "a:\n\tb: 1\n", "a: b: c\n", "a: - b\n", "- a\nb: c\n", "a: \x01\n", "- a # \x00", "a: \xff\n", "a: \u00e9\n", "a: @x\n", "a: `x\n", "a: %x\n", "- -\n- - -\n",
	"a: [b, {c: 1, d: \"e, f\"}, 'g', 10.0.0.1, true, [], {}] # h\n- i\n", "a: {b: [c, d], e: {f: g-h}}\n", "a: [1,2 ,  3]\n", "a: [b,]\n", "a: {b: 1, b: 2}\n", "a: {b:c}\n", "a: {b}\n", "a: [b: c]\n", "a: [-, b]\n", "a: [b c]\n", "a: [b\n  ]\n", "- [a, b]: c\n", "- {a: b}\n- [c]x\n", "a: [y, no, 0x1, 1.5, -1, .5, ~]\n",
	"a: 1\na: 2\n", "a: {}x\n", "a: []  # c\n", "a: 'b'c\n", "# only\n", "a: b #\n", "a:  # c\n  b\n", "a: |  # c\n  b\n", "a: |\nb: 1\n", "a: |\n  x", "a: b:\n", "a:b\n", "a: -\n", "a: -x\n", "a: .\n", "a: =\n",
}

// FuzzTranscode compares the fast conversion of YAML to JSON with the general
// one.
func FuzzTranscode(f *testing.F) {
	for _, s := range seeds {
		f.Add(s)
		for line := range strings.Lines(s) {
			f.Add(line)
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		text = string(plainLines([]byte(text)))
		if end, _ := endOf([]byte(text), 0); end < len(text) {
			return
		}
		got, ok := transcode([]byte(text))
		if !ok {
			return
		}
		want, err := yaml.YAMLToJSON([]byte(text))
		if err != nil {
			t.Fatalf("%q: got %s, want error %v", text, got, err)
		}
		var g, w any
		if err := json.Unmarshal(got, &g); err != nil {
			t.Fatalf("%q: %s: %v", text, got, err)
		}
		if err := json.Unmarshal(want, &w); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(w, g); diff != "" {
			t.Errorf("%q (-want +got)\n%s", text, diff)
		}
	})
}

// FuzzSnapshot checks that Decode never panics, that every diagnostic has a
// position, and that a document is decoded independently of others.
func FuzzSnapshot(f *testing.F) {
	for i, s := range seeds {
		f.Add([]byte(s), uint64(i))
	}
	for _, a := range seeds[:6] {
		f.Add([]byte(a+"\n---\n"+svcB+"---\n"+nodeN), uint64(1))
	}
	f.Fuzz(func(t *testing.T, data []byte, seed uint64) {
		s := snapshot.New()
		diags := Decode(s, "f", data)
		for _, d := range diags {
			if d.File != "f" || d.Line < 1 || d.Doc < 1 || d.Msg == "" {
				t.Errorf("diagnostic without a place: %+v", d)
			}
			if strings.Contains(d.Msg, "given more than once") {
				return // the order matters
			}
		}
		var docs []string
		text := plainLines(data)
		for start := 0; start < len(text); {
			end, next := endOf(text, start)
			doc := string(text[start:end]) + "\n"
			if start == 0 {
				doc = "\n" + doc // others start with the rest of the separator's line
			}
			docs = append(docs, doc)
			start = next
		}
		rng := rand.New(rand.NewPCG(seed, 0))
		rng.Shuffle(len(docs), func(i, j int) { docs[i], docs[j] = docs[j], docs[i] })
		shuffled := snapshot.New()
		Decode(shuffled, "f", []byte("---"+strings.Join(docs, "---")))
		if diff := cmp.Diff(s, shuffled, equate, cmp.AllowUnexported(snapshot.Snapshot{})); diff != "" {
			t.Errorf("shuffled documents (-want +got)\n%s", diff)
		}
	})
}

// The order of objects in a List does not matter.
func TestDecodeShuffledList(t *testing.T) {
	items := cluster(40, 3, 5)
	rng := rand.New(rand.NewPCG(1, 2))
	decode := func(asYAML bool) *snapshot.Snapshot {
		data, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": items})
		if err != nil {
			t.Fatal(err)
		}
		if asYAML {
			if data, err = yaml.JSONToYAML(data); err != nil {
				t.Fatal(err)
			}
		}
		s := snapshot.New()
		if diags := Decode(s, "f", data); len(diags) > 0 {
			t.Fatal(diags)
		}
		return s
	}
	want := decode(false)
	if got := len(objects(want)); got != 85 {
		t.Fatalf("%d objects, want 85", got)
	}
	for i := range 6 {
		rng.Shuffle(len(items), func(i, j int) { items[i], items[j] = items[j], items[i] })
		if diff := cmp.Diff(want, decode(i%2 == 0), equate, cmp.AllowUnexported(snapshot.Snapshot{})); diff != "" {
			t.Fatalf("shuffled (-want +got)\n%s", diff)
		}
	}
}

// FuzzListItems compares a List that is split into items with the same List
// parsed as a whole.
func FuzzListItems(f *testing.F) {
	for _, s := range seeds {
		f.Add(s)
		f.Add(list(s, jsonN, s))
	}
	f.Add("items:\n  - a: |\n     - b\n    c: d\n# e\n  -\n    f: g\nkind: List\n")
	f.Add("items:\n- a: \"b\n- c\"\nkind: List\n")
	f.Add("items:\n- {a: b,\n c: d}\n- e\nkind: List\n")
	f.Add("items:\n- a\nitems:\n- b\nkind: List\n")
	f.Fuzz(func(t *testing.T, text string) {
		text = string(plainLines([]byte(text)))
		if end, _ := endOf([]byte(text), 0); end < len(text) {
			return
		}
		items, parent := listItems([]byte(text))
		if parent == nil {
			return
		}
		out, _, err := toJSON([]byte(text))
		if err != nil {
			return // valid items are decoded anyway
		}
		var want struct{ Items []any }
		if err := json.Unmarshal(out, &want); err != nil {
			t.Fatal(err)
		}
		var got []any
		for _, item := range items {
			part, _, err := toJSON([]byte(strings.Replace(text[item[0]:item[1]], "-", " ", 1)))
			if err != nil {
				return // quoted text without indentation: an error, not a wrong value
			}
			var v any
			if err := json.Unmarshal(part, &v); err != nil {
				t.Fatal(err)
			}
			got = append(got, v)
		}
		if diff := cmp.Diff(want.Items, got); diff != "" {
			t.Errorf("%q (-want +got)\n%s", text, diff)
		}
	})
}
