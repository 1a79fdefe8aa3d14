package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxyc/proxyc/ir"
)

// FlagValues returns the effective values of all flags that set a field of the
// configuration, by the name of the flag and in the flag's format.
func FlagValues(c *Config) map[string]string {
	out := map[string]string{}
	for f := range reflect.TypeFor[Flags]().Fields() {
		if path := f.Tag.Get("config"); path != "" {
			out[f.Tag.Get("name")] = flagText(find(c, path))
		}
	}
	ofOthers := c.IPTables // the section of every mode except ipvs
	if c.ProxyMode() == ir.ModeNFTables {
		ofOthers.SyncPeriod, ofOthers.MinSyncPeriod = c.NFTables.SyncPeriod, c.NFTables.MinSyncPeriod
	}
	var gates, modules []string
	for _, name := range slices.Sorted(maps.Keys(c.FeatureGates)) {
		gates = append(gates, fmt.Sprintf("%s=%t", name, c.FeatureGates[name]))
	}
	for _, m := range c.Logging.VModule {
		modules = append(modules, fmt.Sprintf("%s=%d", m.FilePattern, m.Verbosity))
	}
	_, healthzPort, _ := splitHostPort(c.HealthzBindAddress)
	_, metricsPort, _ := splitHostPort(c.MetricsBindAddress)
	maps.Copy(out, map[string]string{
		"hostname-override":        c.HostnameOverride,
		"feature-gates":            strings.Join(gates, ","),
		"vmodule":                  strings.Join(modules, ","),
		"masquerade-all":           fmt.Sprint(c.MasqueradeAll()),
		"iptables-sync-period":     ofOthers.SyncPeriod.Duration.String(),
		"iptables-min-sync-period": ofOthers.MinSyncPeriod.Duration.String(),
		"ipvs-sync-period":         c.IPVS.SyncPeriod.Duration.String(),
		"ipvs-min-sync-period":     c.IPVS.MinSyncPeriod.Duration.String(),
		"healthz-port":             portText(healthzPort),
		"metrics-port":             portText(metricsPort),
	})
	return out
}

func portText(port string) string {
	if port == "" {
		return "0"
	}
	return port
}

// flagText returns a value in the flag's format.
func flagText(v reflect.Value) string {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return ""
		}
		v = v.Elem()
	}
	switch x := v.Interface().(type) {
	case time.Duration:
		return x.String()
	case metav1.Duration:
		return x.Duration.String()
	case FlushFrequency:
		return x.Duration.Duration.String()
	case []string:
		return "[" + strings.Join(x, ",") + "]"
	}
	return fmt.Sprint(v.Interface())
}
