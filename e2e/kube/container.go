package kube

import (
	"maps"
	"slices"
)

// A Container is what a program sees that kubelet starts: its own files in place of the
// machine's, an environment, and some of root's capabilities. The network is the node's.
type Container struct {
	// Files are directories and files of the machine, by their path in the container. Something
	// must exist at that path.
	Files map[string]string
	// ReadOnly are directories that the program cannot write, except for Files in them.
	ReadOnly []string
	// Env contains "NAME=value" for each addition to the environment.
	Env []string
	// Root is the directory that is the program's file system, read-only, with /proc. If it is
	// empty, the program uses that of the machine.
	Root string
	// Capabilities, if not nil, are all that the program has ("net_admin").
	Capabilities []string
}

// mounting makes the mounts in its arguments up to "--", in its own mount namespace, and then
// executes the remaining arguments.
const mounting = `while [ "$1" != -- ]; do
	if [ "$1" = ro ]; then mount --bind "$2" "$2"; mount -o remount,bind,ro "$2"; else mount --bind "$1" "$2"; fi
	shift 2
done
shift
exec "$@"`

// inRoot does the same below the directory in its first argument, with that directory as the
// root. It creates missing mount points.
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

// rooted returns the arguments of Command for a container with a root directory.
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
		set := "-all,+sys_chroot" // required to change the root
		for _, capability := range c.Capabilities {
			set += ",+" + capability
		}
		args = append(args, "setpriv", "--bounding-set="+set, "--inh-caps="+set)
	}
	return slices.Concat(args, []string{"env"}, c.Env, []string{"chroot", c.Root}, command)
}

// Command returns the executable and the arguments, as for [StartProxy], that run a command in
// the container. Their process becomes the command's.
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
