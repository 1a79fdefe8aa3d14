package main

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxyc/proxyc/cmd/proxyc/disk"
	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/snapshot"
)

// A daemon's node may stand in no object: its name goes all the same.
func TestRedactNodeAlone(t *testing.T) {
	content := &content{objects: new(snapshot.Objects), facts: compiler.Facts{NodeName: "secret",
		Interfaces: []compiler.Interface{{Name: "eth0", Addrs: []netip.Prefix{netip.MustParsePrefix("192.0.2.77/24")}}}}}
	must(t, new(snapshotCmd).redact(testEnv(t, memFiles{}), content))
	if got, want := review.NodeAddressFlags(&content.facts), "--hostname-override node-1 --node-address 192.0.0.0/24@link-1"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// The file of stand-ins is readable only for its owner.
func TestStandInsAreTheOwners(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keep")
	content := &content{objects: &snapshot.Objects{Nodes: []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "secret"}}}}}
	must(t, (&snapshotCmd{StandIns: file}).redact(testEnv(t, disk.OS{}), content))
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if mode := info.Mode(); mode != disk.OwnerOnly {
		t.Errorf("mode %s", mode)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "node-1\tsecret\n" {
		t.Errorf("%q, %v", text, err)
	}
}
