package openai_test

import (
	"testing"

	"github.com/capstan-dev/capstan/internal/model/openai"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// TestUsedUpAccounts checks the errors of services for an account without credit. It does not help to wait, and the key
// is right.
func TestUsedUpAccounts(t *testing.T) {
	for name, tc := range map[string]struct {
		status int
		body   string
	}{
		"new-api": {403, `{"error":{"message":"用户额度不足, 剩余额度: ＄-0.001234","type":"new_api_error","code":"insufficient_user_quota"}}`},
		"new-api, request": {
			403, `{"error":{"message":"pre-consumed quota failed","type":"new_api_error","code":"pre_consume_token_quota_failed"}}`,
		},
		"SiliconFlow": {403, `{"code":30001,"message":"Sorry, your account balance is insufficient","data":null}`},
		"DashScope": {
			400, `{"error":{"message":"Please make sure your account is in good standing.","type":"Arrearage","code":"Arrearage"}}`,
		},
		"Z.ai":   {429, `{"error":{"code":"1113","message":"Insufficient balance or no resource package. Please recharge."}}`},
		"Zhipu":  {429, `{"error":{"code":"1113","message":"余额不足或无可用资源包,请充值。"}}`},
		"Ark":    {403, `{"error":{"code":"AccountOverdueError","message":"Your account has an overdue balance.","type":"Forbidden"}}`},
		"OpenAI": {429, `{"error":{"message":"Your account is not active.","type":"billing_not_active","code":"billing_not_active"}}`},
		"OpenAI, limit": {
			400, `{"error":{"message":"Billing hard limit has been reached","code":"billing_hard_limit_reached"}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			url := serve(t, respond(tc.status, tc.body, jsonType))
			p := provider(t, url, func(c *openai.Config) { c.Dialect = openai.DialectOf("Generic", "") })
			req := request("hello")
			_, err := p.Generate(t.Context(), &req)
			if err == nil || model.AsError(err).Kind != model.QuotaExceeded {
				t.Errorf("Generate: %v, want an error of the kind %s", err, model.QuotaExceeded)
			}
		})
	}
}
