package applytest

import (
	"fmt"
	"io/fs"
	"maps"
	"regexp"
	"strings"

	"sigs.k8s.io/yaml"
)

// FromNode returns the records for a mode in which backends see the node as the client (capability
// KeepsClient): the source of each flow is the node's address towards it.
func (r *Records) FromNode(mode string) *Records {
	own := &Records{Mode: mode, Results: map[string]map[string]map[string]Outcome{}}
	for family, cases := range r.Results {
		own.Results[family] = map[string]map[string]Outcome{}
		for name, flows := range cases {
			own.Results[family][name] = map[string]Outcome{}
			for key, o := range flows {
				if !direct.MatchString(key) {
					o = o.fromNode()
				}
				own.Results[family][name][key] = o
			}
		}
	}
	return own
}

// direct matches flows to other targets than Services: pods, and servers on loopback addresses.
var direct = regexp.MustCompile(`-> (10\.244\.\d\.|fd00:10:244:\d::)\d\d|-> (127\.0\.0\.1|::1):8`)

func (o Outcome) fromNode() Outcome {
	reached, ok := o["reached"].(map[string]any)
	if !ok {
		return o
	}
	seen := map[string]any{}
	for endpoint := range reached {
		source := "node1"
		if strings.HasPrefix(endpoint, "pod1") {
			source = "node1.cni0"
		}
		seen[endpoint] = []string{source}
	}
	o = maps.Clone(o)
	o["reached"] = seen
	return o
}

// LoadModeExceptions reads the exceptions of a mode without its own records.
func LoadModeExceptions(dir fs.FS, mode string) (list []Exception, err error) {
	file := mode + ".yaml"
	text, err := fs.ReadFile(dir, file)
	if err != nil {
		return nil, err
	}
	if err := yaml.UnmarshalStrict(text, &list); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return list, nil
}
