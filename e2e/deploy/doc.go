// Package deploy holds docs/deploy: the chart against the plain manifests, and
// dashboard and alerts against Prometheus' own parser and engine. It is a module
// of its own, for Helm, Kustomize and Prometheus are large.
package deploy
