// Command template prints what helm template would of the chart of docs/deploy, with the
// values of standard input.
package main

import (
	"fmt"
	"io"
	"log"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/e2e/deploy"
)

func main() {
	values, err := io.ReadAll(os.Stdin)
	if err != nil {
		log.Fatal(err)
	}
	log.SetOutput(io.Discard) // Helm says of each link in the chart that it follows it
	texts, err := deploy.Render("../../docs/deploy/chart", values)
	if err != nil {
		fmt.Fprintln(os.Stderr, "template:", err)
		os.Exit(1)
	}
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		if strings.HasSuffix(name, ".yaml") {
			fmt.Printf("---\n%s\n", texts[name])
		}
	}
}
