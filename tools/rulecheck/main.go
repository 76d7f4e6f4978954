// Command rulecheck reads the groups of a PrometheusRule from stdin and prints the
// errors that Prometheus would report.
package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
)

func main() {
	text, err := io.ReadAll(os.Stdin)
	wrong := []error{err}
	if err == nil {
		_, wrong = rulefmt.Parse(text, false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
	}
	for _, one := range wrong {
		fmt.Println(one)
	}
	if len(wrong) > 0 {
		os.Exit(1)
	}
}
