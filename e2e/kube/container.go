package kube

import (
	"maps"
	"slices"
)

// A Container is what a program sees that kubelet starts: files of its own in
// place of the machine's, an environment, and some of root's capabilities. The
// network is the node's.
type Container struct {
	// Files are directories and files of the machine, by where the program sees
	// them; something must be there.
	Files map[string]string
	// ReadOnly are directories that the program cannot write, but for Files in them.
	ReadOnly []string
	// Env has "NAME=value" for what is added to the environment.
	Env []string
	// Root is the directory that is the program's file system, read-only, with /proc; empty:
	// the machine's files are.
	Root string
	// Capabilities, if not nil, are all that the program has ("net_admin").
	Capabilities []string
}

// mounting makes the mounts that its arguments name up to "--", in a mount
// namespace of its own, and becomes the program that they name after it.
const mounting = `while [ "$1" != -- ]; do
	if [ "$1" = ro ]; then mount --bind "$2" "$2"; mount -o remount,bind,ro "$2"; else mount --bind "$1" "$2"; fi
	shift 2
done
shift
exec "$@"`

// inRoot does the same below the directory that is its first argument, makes what is
// missing to mount at, and becomes the program with that directory for its root.
const inRoot = `root=$1
shift
mount --bind "$root" "$root"
while [ "$1" != -- ]; do
	if [ "$1" = ro ]; then
		mount --bind "$root$2" "$root$2"
		mount -o remount,bind,ro "$root$2"
	else
		mkdir -p "$(dirname "$root$2")"
		if [ -d "$1" ]; then mkdir -p "$root$2"; else [ -e "$root$2" ] || touch "$root$2"; fi
		mount --bind "$1" "$root$2"
	fi
	shift 2
done
shift
mount -o remount,bind,ro "$root"
exec "$@"`

// rooted are the arguments of Command where the container has a root directory.
func (c *Container) rooted(command []string) []string {
	args := []string{"--mount", "--propagation=private", "--", "sh", "-ec", inRoot, "sh", c.Root}
	points := slices.AppendSeq(slices.Clone(c.ReadOnly), maps.Keys(c.Files))
	slices.Sort(points) // directories before what is in them
	for _, at := range slices.Compact(points) {
		if from, ok := c.Files[at]; ok {
			args = append(args, from, at)
		}
		if slices.Contains(c.ReadOnly, at) {
			args = append(args, "ro", at)
		}
	}
	args = append(args, "--")
	if c.Capabilities != nil {
		set := "-all,+sys_chroot" // by which the root is changed
		for _, capability := range c.Capabilities {
			set += ",+" + capability
		}
		args = append(args, "setpriv", "--bounding-set="+set, "--inh-caps="+set)
	}
	return slices.Concat(args, []string{"env"}, c.Env, []string{"chroot", c.Root}, command)
}

// Command gives the executable and the arguments, as for [StartProxy], that
// run a command in the container. The process that they make is the command's.
func (c *Container) Command(command ...string) (binary string, args []string) {
	if c.Root != "" {
		return "unshare", c.rooted(command)
	}
	args = []string{"--mount", "--propagation=private", "--", "sh", "-ec", mounting, "sh"}
	for _, at := range c.ReadOnly {
		args = append(args, "ro", at)
	}
	for at, from := range c.Files {
		args = append(args, from, at)
	}
	args = append(args, "--")
	if c.Capabilities != nil {
		set := "-all"
		for _, capability := range c.Capabilities {
			set += ",+" + capability
		}
		args = append(args, "setpriv", "--bounding-set="+set, "--inh-caps="+set)
	}
	args = append(args, "env")
	return "unshare", slices.Concat(args, c.Env, command)
}
