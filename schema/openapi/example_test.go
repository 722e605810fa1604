package openapi_test

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/krmcat/krmcat/schema/openapi"
)

func ExampleCompile() {
	s, err := openapi.Compile(json.RawMessage(`{
		"type": "object",
		"required": ["labels"],
		"properties": {
			"labels": {"type": "object", "additionalProperties": {"type": "string"}},
			"mode": {"type": "string", "default": "merge", "enum": ["merge", "replace"]}
		}
	}`))
	if err != nil {
		panic(err)
	}
	found, err := s.Validate(context.Background(), "config.yaml", []byte("apiVersion: fn.example.com/v1\nkind: SetLabels\nmode: add\nlables: {a: b}\n"))
	if err != nil {
		panic(err)
	}
	for _, d := range found {
		fmt.Println(d)
	}
	// Output:
	// config.yaml:1:1: error KF002: missing "labels"
	// config.yaml:3:7: error KF001: mode: "add" is not one of the supported values: "merge", "replace"
	// config.yaml:4:1: error KF003: lables: unknown field "lables" (did you mean "labels"?)
}

func ExampleSchema_Defaults() {
	s, err := openapi.Compile(json.RawMessage(`{"type": "object", "properties": {"mode": {"type": "string", "default": "merge"}}}`))
	if err != nil {
		panic(err)
	}
	config, err := s.Defaults(map[string]any{"kind": "SetLabels"})
	if err != nil {
		panic(err)
	}
	fmt.Println(config)
	// Output:
	// map[kind:SetLabels mode:merge]
}
