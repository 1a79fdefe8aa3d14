// Vm runs tests on a second kernel: Debian's stock kernel, in a disposable virtual machine that
// sees this machine's files. It has modules that a container's host may lack: ip_vs, dummy
// devices, ipset, flowtables.
//
//	vm                  run the usual suites, in at most 12 minutes
//	vm -all             run all of them
//	vm -only REGEXP     run those whose names match
//	vm -- COMMAND...    run a command, in the current directory
//	vm -shell           open a shell; ctrl-a x ends the machine
//
// Writes go to the machine's memory and are lost, except below the directory of -writable. The
// only networks are those that tests create. If /dev/kvm does not work, qemu emulates the
// processor, which is some 20 times slower. The suites therefore are static binaries that are
// built outside.
//
// Debian's user-mode Linux 6.1 needs no emulation, but cannot replace this kernel: it lacks
// NF_TABLES_IPV4, NF_TABLES_IPV6, NF_TABLES_INET and NFT_FLOW_OFFLOAD. Neither mode nftables nor
// the nft variant of iptables works there.
//
// The program is also the first process of the machine (guest_linux.go).
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"text/tabwriter"
	"time"
)

func main() {
	if os.Getpid() == 1 {
		guest()
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ok, err := run(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "vm:", err)
		os.Exit(2)
	}
	if !ok {
		os.Exit(1)
	}
}

func run(ctx context.Context) (ok bool, err error) {
	var (
		all      = flag.Bool("all", false, "run all suites, not only the usual ones")
		only     = flag.String("only", "", "run those of all suites whose names match")
		list     = flag.Bool("list", false, "list the suites, and run none")
		shell    = flag.Bool("shell", false, "open a shell")
		writable = flag.String("writable", "", "directory in which writes persist")
		dir      = flag.String("cache", cacheDir(), "directory for the kernel")
		m        = machine{}
	)
	flag.StringVar(&m.accel, "accel", "", "accelerator of qemu; kvm where it works, else tcg")
	// Emulated processors wait for each other. On a busy machine that costs more than a second
	// one gains.
	flag.IntVar(&m.cpus, "cpus", 1, "processors")
	flag.BoolVar(&m.counted, "counted", false, "let the clock count instructions, a nanosecond each, so that measurements do not depend on other programs")
	flag.IntVar(&m.memory, "memory", 4096, "memory in MB")
	flag.DurationVar(&m.silence, "silence", 5*time.Minute, "how long the machine may print nothing before it is killed")
	flag.DurationVar(&m.timeout, "timeout", 0, "maximum duration; 0 for two hours, or twelve for all suites")
	flag.Parse()
	switch {
	case m.timeout > 0:
	case *all:
		m.timeout = 12 * time.Hour
	default:
		m.timeout = 2 * time.Hour
	}

	chosen, err := choose(*only, *all)
	if err != nil {
		return false, err
	}
	if *list {
		for _, s := range chosen {
			fmt.Println(s.name)
		}
		return true, nil
	}
	if m.work, err = os.MkdirTemp("", "vm-"); err != nil {
		return false, err
	}
	defer os.RemoveAll(m.work)
	if m.kernel, err = findKernel(ctx, *dir); err != nil {
		return false, err
	}
	if *writable != "" {
		if m.writable, err = filepath.Abs(*writable); err != nil {
			return false, err
		}
	}
	var j job
	switch {
	case *shell:
		j.Shell = true
		j.Commands = []command{{Name: "shell", Args: []string{"/bin/bash", "-l"}}}
	case flag.NArg() > 0:
		j.Commands = []command{{Name: flag.Arg(0), Args: flag.Args()}}
	default:
		if j.Commands, err = build(ctx, m.work, chosen); err != nil {
			return false, err
		}
	}
	here, err := os.Getwd()
	if err != nil {
		return false, err
	}
	for i := range j.Commands {
		if j.Commands[i].Dir == "" {
			j.Commands[i].Dir = here
		}
	}
	results, err := m.run(ctx, j)
	return report(j, results) && err == nil, err
}

// choose returns the suites whose names match, or the usual ones.
func choose(only string, all bool) (chosen []suite, err error) {
	match, err := regexp.Compile(only)
	if err != nil {
		return nil, fmt.Errorf("-only: %w", err)
	}
	for _, s := range suites {
		if s.usual || all || only != "" {
			if match.MatchString(s.name) {
				chosen = append(chosen, s)
			}
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("-only: no suite matches %q", only)
	}
	return chosen, nil
}

// report prints how each command ended, if there are several, and reports whether all succeeded.
func report(j job, results []result) bool {
	ok := true
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 3, ' ', 0)
	for i, c := range j.Commands {
		if i >= len(results) {
			ok = false
			fmt.Fprintf(w, "vm: %s\tdid not end\n", c.Name)
			continue
		}
		how := "ok"
		if r := results[i]; r.Error != "" {
			ok, how = false, r.Error
		}
		fmt.Fprintf(w, "vm: %s\t%s\t%.0f s\n", c.Name, how, results[i].Seconds)
	}
	if len(j.Commands) > 1 || !ok {
		w.Flush()
	}
	return ok
}
