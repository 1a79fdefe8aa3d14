// Command template prints the output of helm template for the chart of docs/deploy. It reads the
// values from standard input.
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
	log.SetOutput(io.Discard) // Helm logs every link that it follows in the chart
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
