//go:build tools

// Package kubernetes runs Kubernetes' own end-to-end tests on real kubelets. This file keeps the
// module of the tests in go.mod.
package kubernetes

import _ "k8s.io/kubernetes/test/e2e"
