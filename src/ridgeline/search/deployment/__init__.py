"""Sizing a deployment: a model, a system, requests and an objective become replicas, pools and engine settings."""
