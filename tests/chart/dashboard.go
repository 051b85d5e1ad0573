package main

import (
	"fmt"
	"os"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
)

// The number of columns of Grafana's grid.
const columns = 24

// ReadDashboard returns the number of panels. It refuses unknown fields, missing required fields and values of another type, in
// panels and queries too.
func readDashboard(text []byte) (int, error) {
	plugins.RegisterDefaultPlugins()
	var board dashboard.Dashboard
	if err := board.UnmarshalJSONStrict(text); err != nil {
		return 0, err
	}
	if err := board.Validate(); err != nil {
		return 0, err
	}
	seen := map[uint32]bool{}
	taken := map[[2]uint32]string{}
	for _, either := range board.Panels {
		id, title, at := place(either)
		if seen[id] {
			return 0, fmt.Errorf("%s: another panel has the id %d", title, id)
		}
		seen[id] = true
		if at == nil || at.X+at.W > columns {
			return 0, fmt.Errorf("%s: not inside the grid's %d columns", title, columns)
		}
		for x := at.X; x < at.X+at.W; x++ {
			for y := at.Y; y < at.Y+at.H; y++ {
				if other, found := taken[[2]uint32{x, y}]; found {
					return 0, fmt.Errorf("%s: covers %s", title, other)
				}
				taken[[2]uint32{x, y}] = title
			}
		}
		if either.Panel == nil {
			continue
		}
		if err := known(either.Panel); err != nil {
			return 0, fmt.Errorf("%s: %w", title, err)
		}
	}
	return len(board.Panels), nil
}

func place(either dashboard.PanelOrRowPanel) (uint32, string, *dashboard.GridPos) {
	if row := either.RowPanel; row != nil {
		return row.Id, "the row " + said(row.Title), row.GridPos
	}
	panel := either.Panel
	id := uint32(0)
	if panel.Id != nil {
		id = *panel.Id
	}
	return id, "the panel " + said(panel.Title), panel.GridPos
}

func said(title *string) string {
	if title == nil {
		return "without a title"
	}
	return fmt.Sprintf("%q", *title)
}

// Known refuses what strict reading accepts as an extension: a kind of panel that Grafana does not have, and a query of another
// source than Prometheus.
func known(panel *dashboard.Panel) error {
	if _, found := cog.ConfigForPanelcfgVariant(panel.Type); !found {
		return fmt.Errorf("Grafana has no panel %q", panel.Type)
	}
	if len(panel.Targets) == 0 {
		return fmt.Errorf("it asks nothing")
	}
	for _, target := range panel.Targets {
		switch target.(type) {
		case prometheus.Dataquery, *prometheus.Dataquery:
		default:
			return fmt.Errorf("a query of %q, which is not Prometheus", target.DataqueryType())
		}
	}
	return nil
}

func judgeDashboard(path string) {
	text, err := os.ReadFile(path)
	check(err, "cannot read the dashboard")
	panels, err := readDashboard(text)
	check(err, path)
	fmt.Printf("%d panels are what Grafana takes\n", panels)
}
