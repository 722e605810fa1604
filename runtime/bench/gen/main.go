// Command gen writes a folder of resources to measure with: a mix of
// Deployments, Services and ConfigMaps with comments, one in a file.
//
//	gen DIR COUNT
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

const deployment = `# The front end number %[1]d.
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web-%[1]d # kept by name
  namespace: shop-%[2]d
  labels:
    app: web-%[1]d
    tier: "front"
spec:
  replicas: 3 # enough for now
  selector:
    matchLabels:
      app: web-%[1]d
  template:
    metadata:
      labels:
        app: web-%[1]d
    spec:
      containers:
      # the server
      - name: nginx
        image: nginx:1.7.9
        ports:
        - containerPort: 80
        resources:
          limits: {cpu: 500m, memory: 256Mi}
        env:
        - name: MODE
          value: "production"
        - name: INDEX
          value: "%[1]d"
`

const service = `apiVersion: v1
kind: Service
metadata:
  name: web-%[1]d
  namespace: shop-%[2]d
  labels:
    app: web-%[1]d
spec:
  type: ClusterIP
  selector:
    app: web-%[1]d
  ports:
  - protocol: TCP
    port: 80 # plain
    targetPort: 8080
    name: http
`

const configMap = `apiVersion: v1
kind: ConfigMap
metadata:
  name: settings-%[1]d
  namespace: shop-%[2]d
data:
  mode: production
  # A script, with what looks like a comment.
  start.sh: |
    #!/bin/sh
    # not a comment of the resource
    exec server --index %[1]d
  settings.json: '{"a": [1, 2, 3], "index": %[1]d}'
`

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: gen DIR COUNT")
		os.Exit(2)
	}
	n, err := strconv.Atoi(os.Args[2])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	for i := range n {
		text := []string{deployment, service, configMap}[i%3]
		dir := filepath.Join(os.Args[1], fmt.Sprintf("part-%d", i/100))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("r%d.yaml", i)), fmt.Appendf(nil, text, i, i%7), 0o644); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}
