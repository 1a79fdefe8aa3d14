// Package deploy tests docs/deploy: the chart against the plain manifests, and dashboard and
// alerts with Prometheus' own parser and engine. It is a module of its own, since Helm, Kustomize
// and Prometheus are large.
package deploy
