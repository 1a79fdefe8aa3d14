// Judge prints what the real kube-proxy says of configurations before it starts: for each text of a
// JSON list on standard input an error, or "". It is built with the modules of several releases.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"os"
	"os/exec"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register"
	metricsfeatures "k8s.io/component-base/metrics/features"
	_ "k8s.io/kubernetes/pkg/features"
	kubeproxyconfig "k8s.io/kubernetes/pkg/proxy/apis/config"
	"k8s.io/kubernetes/pkg/proxy/apis/config/scheme"
	"k8s.io/kubernetes/pkg/proxy/apis/config/v1alpha1"
	"k8s.io/kubernetes/pkg/proxy/apis/config/validation"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) > 1 { // a process for each text, since feature gates are set once in one
		if err := check(os.Args[1]); err != nil {
			fmt.Print(err)
		}
		return
	}
	var texts, answers []string
	if err := json.NewDecoder(os.Stdin).Decode(&texts); err != nil {
		log.Fatal(err)
	}
	for _, text := range texts {
		answer, err := exec.Command(os.Args[0], text).Output()
		if err != nil {
			log.Fatal(err)
		}
		answers = append(answers, string(answer))
	}
	if err := json.NewEncoder(os.Stdout).Encode(answers); err != nil {
		log.Fatal(err)
	}
}

// check decodes a file as kube-proxy does, and validates it.
func check(text string) error {
	gates := utilfeature.DefaultMutableFeatureGate
	for _, add := range []error{metricsfeatures.AddFeatureGates(gates), logsapi.AddFeatureGates(gates)} {
		if add != nil {
			return add
		}
	}
	object, _, err := scheme.Codecs.UniversalDecoder().Decode([]byte(text), nil, nil)
	if runtime.IsStrictDecodingError(err) {
		lenient := runtime.NewScheme()
		for _, add := range []error{kubeproxyconfig.AddToScheme(lenient), v1alpha1.AddToScheme(lenient)} {
			if add != nil {
				return add
			}
		}
		codecs := serializer.NewCodecFactory(lenient, serializer.DisableStrict)
		object, _, err = codecs.UniversalDecoder().Decode([]byte(text), nil, nil)
	}
	if err != nil {
		return err
	}
	c, ok := object.(*kubeproxyconfig.KubeProxyConfiguration)
	if !ok {
		return fmt.Errorf("got %T", object)
	}
	if err := gates.SetFromMap(c.FeatureGates); err != nil { // as Options.Complete
		return err
	}
	if c.DetectLocalMode == "" {
		c.DetectLocalMode = kubeproxyconfig.LocalModeClusterCIDR
	}
	return validation.Validate(c).ToAggregate()
}
