package deploy

import (
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
)

// Render returns the output of helm template for the chart in a directory, by file. values has
// the form of a user's values file.
func Render(dir string, values []byte) (map[string]string, error) {
	chart, err := loader.Load(dir)
	if err != nil {
		return nil, err
	}
	given, err := chartutil.ReadValues(values)
	if err != nil {
		return nil, err
	}
	cluster := chartutil.DefaultCapabilities.Copy() // of the oldest Kubernetes that Helm knows
	cluster.KubeVersion = chartutil.KubeVersion{Version: "v1.37.2", Major: "1", Minor: "37"}
	all, err := chartutil.ToRenderValues(chart, given, chartutil.ReleaseOptions{Name: "proxyc", Namespace: "kube-system", IsInstall: true}, cluster)
	if err != nil {
		return nil, err
	}
	return engine.Render(chart, all)
}
